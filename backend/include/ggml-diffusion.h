// ggml-diffusion.h - C interface of a ggml backend that offers a decoding mode for diffusion language models.
//
// A host asks a backend registry for the table:
//
//     typedef const struct ggml_diffusion_api * (*ggml_diffusion_get_api_t)(void);
//     ggml_diffusion_get_api_t get = (ggml_diffusion_get_api_t)
//         ggml_backend_reg_get_proc_address(reg, GGML_DIFFUSION_GET_API_PROC);
//
// NULL means that the backend has no such mode. The table is static and lives as long as the process.
//
// Rules of all calls
//   * Functions that return int return 0 on success and one of ggml_diffusion_status otherwise; functions that return
//     a handle return NULL on failure. last_error() then has one line that names the thing at fault (per thread,
//     valid until the next call on the same thread).
//   * Every struct starts with its size in bytes, set by the caller (sizeof). A backend reads and writes no more than
//     that, so either side may be older than the other. Zeroed remaining fields mean "default".
//   * A model may be shared by many sessions. A session is used by one call at a time: calls for it from inside its own
//     callback are refused (GGML_DIFFUSION_INVALID; session_free() then does nothing).
//   * No call aborts the process or throws.

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GGML_DIFFUSION_API_VERSION 1
#define GGML_DIFFUSION_GET_API_PROC "ggml_backend_diffusion_get_api"

enum ggml_diffusion_status {
    GGML_DIFFUSION_OK            =  0,
    GGML_DIFFUSION_INVALID       = -1, // a parameter is wrong; last_error() names it
    GGML_DIFFUSION_UNSUPPORTED   = -2, // the model file is valid but cannot be decoded here
    GGML_DIFFUSION_FAILED        = -3, // I/O, out of memory or a failed computation
    GGML_DIFFUSION_CANCELLED     = -4, // a callback asked to stop; the stable text is kept
};

enum ggml_diffusion_stage {
    GGML_DIFFUSION_MASKED  = 0,
    GGML_DIFFUSION_VISIBLE = 1, // a token stands here and may still change
    GGML_DIFFUSION_STABLE  = 2, // frozen
    GGML_DIFFUSION_DRAFT   = 3, // masked, and a token stands here for the time being; not part of the text
};

enum ggml_diffusion_event_type {
    GGML_DIFFUSION_EVENT_COMMITTED     = 0, // pos, token, stage
    GGML_DIFFUSION_EVENT_REPLACED      = 1, // pos, token
    GGML_DIFFUSION_EVENT_REMASKED      = 2, // pos
    GGML_DIFFUSION_EVENT_STABLE_PREFIX = 3, // n = generated tokens that are final and can be printed
    GGML_DIFFUSION_EVENT_STEP          = 4, // step, n = masked positions left; sent after the events of the step
};

typedef struct ggml_diffusion_model   * ggml_diffusion_model_t;
typedef struct ggml_diffusion_session * ggml_diffusion_session_t;

// One option of the decoding mode: "--diffusion-<key> VALUE" on a command line.
struct ggml_diffusion_option_info {
    size_t       size;
    const char * key;           // for example "threshold"; static string
    const char * value_name;    // for example "F"; static string
    const char * default_value; // as text, "" when it depends on the model or the mode; static string
    const char * help;          // one line; static string
};

struct ggml_diffusion_model_params {
    size_t size;
    bool   check_tensors; // scan the weights for NaN, Inf and invalid scales at load
    // called with 0..1 while loading; returning false cancels; may be NULL
    bool (*progress)(float progress, void * user_data);
    void * progress_user_data;
};

struct ggml_diffusion_model_info {
    size_t       size;
    const char * architecture; // lives as long as the model
    int32_t      n_vocab;
    int32_t      n_ctx_train;
    int32_t      mask_token; // -1: none
    int32_t      eos_token; // -1: none
    int32_t      eot_token; // -1: none
    bool         shift_logits;
    uint64_t     n_params;
    uint64_t     size_bytes; // of the weights
};

struct ggml_diffusion_session_params {
    size_t  size;
    int32_t n_ctx;      // canvas limit (prompt and generated tokens); 0 = the model's context length
    int32_t n_threads;  // 0 = number of physical cores
    int32_t type_k;     // ggml_type of the K store; 0 (F32), 1 (F16); -1 = default (F16)
    int32_t type_v;     // ggml_type of the V store, likewise
    uint32_t seed;      // 0xFFFFFFFF = random
    float   temperature; // 0 = argmax
    int32_t top_k;      // 0 = off
    float   top_p;      // 1 = off
};

struct ggml_diffusion_event {
    size_t          size;
    int32_t         type;  // enum ggml_diffusion_event_type
    int32_t         pos;   // position in the canvas, prompt included
    int32_t         token;
    int32_t         stage; // enum ggml_diffusion_stage
    int32_t         step;
    int32_t         n;
    // the canvas, readable during the call
    const int32_t * canvas;   // [n_canvas] token ids, mask token where masked and no draft stands
    const uint8_t * stages;   // [n_canvas] enum ggml_diffusion_stage
    int32_t         n_canvas;
    int32_t         n_prompt;
};

// A non-zero return cancels the generation.
typedef int (*ggml_diffusion_callback)(const struct ggml_diffusion_event * event, void * user_data);

struct ggml_diffusion_report {
    size_t   size;
    uint32_t n_prompt;
    uint32_t n_generated;       // tokens kept, EOS not counted
    uint32_t forwards_prefill;
    uint32_t forwards_refresh;
    uint32_t forwards_step;
    uint32_t forwards_promotion;
    uint32_t forwards_sweep;
    uint64_t rows_dense;
    uint64_t rows_padded;
    uint64_t rows_revision;
    uint64_t rows_logits;
    uint32_t drafts_made;
    uint32_t drafts_kept;
    uint32_t revisions_made;
    uint32_t revisions_replaced;
    uint32_t revisions_remasked;
    uint32_t n_committed;       // commits in all, those after EOS included
    double   seconds_total;
    double   seconds_dense;
    double   seconds_revision;
    double   seconds_sampling;
    double   seconds_waiting;
    uint64_t buckets;           // of 32 rows, revision rows among them, in all forwards
    double   npu_ms;            // of all forwards, by the cost table `npu`: 50 + 27.3 per bucket
};

struct ggml_diffusion_api {
    size_t   size;
    uint32_t version; // GGML_DIFFUSION_API_VERSION

    const char * (*last_error)(void);

    size_t (*n_options)(void);
    int    (*option_info)(size_t index, struct ggml_diffusion_option_info * info);

    ggml_diffusion_model_t (*model_load)(const char * path, const struct ggml_diffusion_model_params * params);
    void                   (*model_free)(ggml_diffusion_model_t model); // sessions must be freed first
    int                    (*model_get_info)(ggml_diffusion_model_t model, struct ggml_diffusion_model_info * info);

    ggml_diffusion_session_t (*session_new)(ggml_diffusion_model_t model, const struct ggml_diffusion_session_params * params);
    void                     (*session_free)(ggml_diffusion_session_t session);

    // Sets an option; an unknown key or a bad value fails at once, a key without meaning in the mode fails in check().
    int (*session_set)(ggml_diffusion_session_t session, const char * key, const char * value);
    // Checks the options against each other, the model and the lengths, without computing.
    int (*session_check)(ggml_diffusion_session_t session, int32_t n_prompt, int32_t n_generate);

    // Generates n_generate positions after the prompt. Blocking; events arrive on the calling thread.
    int (*generate)(ggml_diffusion_session_t session, const int32_t * prompt, int32_t n_prompt, int32_t n_generate,
                    ggml_diffusion_callback callback, void * user_data);

    // Copies the kept tokens of the last generate() (up to EOS, or the stable prefix after a cancel) and returns their number;
    // tokens may be NULL when n_max is 0.
    int32_t (*output)(ggml_diffusion_session_t session, int32_t * tokens, int32_t n_max);

    int (*get_report)(ggml_diffusion_session_t session, struct ggml_diffusion_report * report);
    // Writes the report as JSON, always terminated; returns the length without the terminator, as snprintf does.
    int32_t (*get_report_json)(ggml_diffusion_session_t session, char * text, size_t n_max);

    // The ggml_diffusion_status behind last_error(): tells a caller of model_load() or session_new() why it got NULL.
    // After GGML_DIFFUSION_UNSUPPORTED the same file may still work elsewhere.
    int (*last_status)(void);
};

typedef const struct ggml_diffusion_api * (*ggml_diffusion_get_api_t)(void);

#ifdef __cplusplus
}
#endif

//! Defects of the stock `llama-diffusion-cli`, and reports of its users, that must not occur here: with the patched
//! `llama-diffusion-cli --backend llada-npu`, and with `llada-npu run`.
//!
//! Found in the stock sources (`examples/diffusion` of August 2026):
//!
//! | | in stock | here |
//! |---|---|---|
//! | D1 | no K/V cache: the whole canvas is computed in every step | `work`: `prompt_and_finished_blocks_are_computed_once`, `rows_of_a_step_are_bounded_with_shifted_logits_too` |
//! | D2 | logits of all rows in every step | `work`: `logits_are_computed_for_masks_of_the_block_alone` |
//! | D3 | `-ub` above `-b` aborts | `flags`: `batch_sizes_do_not_matter` |
//! | D4 | neither or both of eps and block length abort | `flags`: `no_schedule_needs_to_be_chosen`, `two_schedules_are_refused_by_name` |
//! | D5 | blocks that do not divide the length, and steps that do not divide the blocks, abort | `flags`: `steps_and_blocks_need_not_divide_the_length` |
//! | D6 | blocks count the prompt: steps are spent past the end | `work`: `every_step_asked_for_runs_inside_the_answer` |
//! | D7 | `--temp 0` samples at temperature 1 | `order`: `the_most_probable_token_is_chosen_at_temperature_zero`, `temp_zero_is_greedy` |
//! | D8 | ENTROPY commits the most uncertain first | `order`: `entropy_commits_least_uncertain_first` |
//! | D9 | MARGIN reads unsorted candidates | `order`: `margin_is_that_of_the_two_most_probable_tokens` |
//! | D10 | an algorithm temperature may draw a position twice | `order`: `drawn_positions_are_distinct` |
//! | D11 | no end at EOS, no trimming, no length | `work`: `decoding_ends_at_the_end_token`, `n_is_the_length_of_the_answer`; `order`: `end_tokens_are_not_printed` |
//! | D12 | MASK may be committed, ORIGIN may leave masks | `order`: `mask_is_never_committed`, `a_model_that_wants_masks_gives_text`, `origin_leaves_no_mask` |
//! | D13 | failures exit with 0, with or without garbage | `flags`: `a_prompt_that_does_not_fit_is_a_failure`, `a_failed_step_is_a_failure`, `an_empty_prompt_is_no_crash` |
//! | D14 | the answer goes to stderr through a logger, and is lost now and then | `output`: `answer_goes_to_stdout_and_is_never_lost`, `nothing_but_the_answer_is_on_stdout` |
//! | D15 | a missing `diffusion.shift_logits` is true for every architecture | `files`: `a_missing_shift_key_defaults_by_architecture` |
//! | D16 | `-ot`, `--override-kv` and others are parsed and dropped | `flags`: `flags_are_honoured_or_refused_by_name`, `context_and_cache_types_are_honoured` |
//! | D17 | the canvas shows halves of UTF-8 sequences | `output`: `visual_mode_keeps_utf8_split_over_tokens`, `characters_split_over_tokens_are_whole`, `the_canvas_does_not_steer_the_terminal` |
//!
//! `--diffusion-alg-temp`, `--diffusion-cfg-scale` and `--diffusion-add-gumbel-noise` are dead in stock: `order`:
//! `drawn_positions_are_distinct`; `work`: `guidance_runs_the_sequence_twice`; `flags`: `gumbel_noise_changes_every_position`.
//!
//! Reported by users (numbers are those of llama.cpp unless said otherwise):
//!
//! | | report | here |
//! |---|---|---|
//! | R1 | #17249: llama-server loads LLaDA-MoE, every request fails | no server is built or patched; the architecture is refused at load, by name: `files`: `architectures_that_are_not_supported_are_named`, `autoregressive_models_are_refused_by_name` |
//! | R2 | text-generation-webui #7147: HTTP 500 with Dream | as R1: there is no server |
//! | R3 | #14771: `--diffusion-*` are invalid arguments, the tool is in no release | `flags`: `every_flag_of_the_stock_tool_is_taken` |
//! | R4 | #14771: the full canvas in every step | D1 |
//! | R5 | Dream-Coder #1: sampling all rows dominates | D2. Its share of the time is not asserted: times are no test; the benchmark prints them |
//! | R6 | Dream-Coder #3: 768 steps | `work`: `a_sure_model_needs_one_forward_per_block` |
//! | R8 | #19822: conversion of `LLaDA2` fails over tensor names | conversion is not ours; `files`: `missing_tensors_are_named_and_fused_ones_are_taken` |
//! | R9, R10, R19 | #16973, #12360, ollama #9474 ask for `LLaDA2`, LLaDA, a server | nothing to replay; `LLaDA2` is refused by name as in R1 |
//! | R11 | #24423: speed, and no word where the time goes | `work`: `the_report_tells_time_by_phase` |
//! | R12 | #24423: the prompt is prefilled again for every block | D1, with 1010 tokens of prompt: rows are counted, so that a longer one shows nothing else |
//! | R14 | #24423: flash attention is turned off silently | `-fa` is refused by name: `flags`: `flags_are_honoured_or_refused_by_name` |
//! | R15 | #24423: a server that ignores `-ngl` and is not HTTP | there is no server; flags as D16 |
//! | R16 | #24423: a measured speed | nothing to replay |
//! | R18 | lemonade #2531 and others: `unknown model architecture: 'diffusion-gemma'` | as R1: named, with what is supported |
//! | R20 | #17433: a quarter of the time goes to sampling | as R5 |
//! | R23 | llama.cpp-hub #40: a program that wraps the tool | `output`: `report_and_progress_can_be_parsed` |
//! | R24 | the answer is lost now and then | D14; 40 runs of each program |
//! | R25 | `--temp 0` depends on the seed | D7 |
//! | R26 | ENTROPY commits the least certain first | D8 |
//! | R29 | a missing shift key gives rubbish | D15 |
//! | R29b | #24423: `--n-cpu-moe`, `-ot` parsed and dropped | D16 |
//!
//! `limits` runs a grid over lengths and options. What the host program of the tool does by itself (progress bars,
//! Ctrl-C, errors of a backend) is tested with a scripted backend in `tests/tools`; wrong flags and files of `llada-npu` in
//! `cli_bad_input`.

mod files;
mod flags;
mod limits;
mod models;
mod order;
mod output;
mod programs;
mod work;

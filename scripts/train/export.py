"""Writes the trained model as F16, Q8_0 and Q4_0 GGUF files that stock llama.cpp loads.

Norm weights stay F32. The Q4_0 file keeps the token embedding and the output matrix in Q8_0.

usage: export.py TRAINED_DIR MODEL_DIR      reads {tokenizer.json,params.npz}, writes llada-tiny-{f16,q8_0,q4_0}.gguf
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from model import RMS_EPS, ROPE_BASE, Config
from vocabulary import CONTROL_TOKENS, EOS, IM_END, MASK

ARCHITECTURE = "llada"
CHAT_TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                 "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
                 "{% endif %}")
FILES = {"f16": (Type.F16, Type.F16, gguf.LlamaFileType.MOSTLY_F16),
         "q8_0": (Type.Q8_0, Type.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
         "q4_0": (Type.Q4_0, Type.Q8_0, gguf.LlamaFileType.MOSTLY_Q4_0)}


def add_model_keys(writer, config, file_type):
    writer.add_name("llada-tiny")
    writer.add_file_type(file_type)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.n_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_causal_attention(False)
    writer.add_bool("diffusion.shift_logits", False)


def add_tokenizer_keys(writer, tokenizer):
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    kinds = [gguf.TokenType.CONTROL if token in CONTROL_TOKENS else gguf.TokenType.NORMAL for token in vocabulary]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(IM_END)
    writer.add_pad_token_id(EOS)
    writer.add_mask_token_id(MASK)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_model(path, params, tokenizer, config, block_type, end_type, file_type):
    """Writes one file: `block_type` for the matrices of the blocks, `end_type` for embedding and output."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    add_model_keys(writer, config, file_type)
    add_tokenizer_keys(writer, tokenizer)
    for name, value in params.items():
        kind = Type.F32 if value.ndim == 1 else block_type if name.startswith("blk.") else end_type
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    trained, models = map(Path, sys.argv[1:])
    tokenizer = json.loads((trained / "tokenizer.json").read_text())
    with np.load(trained / "params.npz") as file:
        params = {name: np.asarray(file[name], np.float32) for name in file.files}
    for suffix, kinds in FILES.items():
        write_model(models / f"llada-tiny-{suffix}.gguf", params, tokenizer, Config(), *kinds)


if __name__ == "__main__":
    main()

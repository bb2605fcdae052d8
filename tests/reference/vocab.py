"""A small valid byte-level BPE vocabulary for test models, as llama.cpp wants it (`tokenizer.ggml.model` = gpt2)."""

from __future__ import annotations

from dataclasses import dataclass

from gguf import GGUFWriter, TokenType

END_OF_TEXT, MASK, IM_START, IM_END = "<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END_OF_TEXT, MASK, IM_START, IM_END)
MERGES = ("t h", "th e", "i n", "a n", "e r", "o n", "an d", "in g", "Ġ t", "Ġ a", "Ġt h", "Ġth e", "l l", "o u")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in of every byte."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + hidden.index(byte)) for byte in range(256)]


@dataclass(frozen=True)
class Vocab:
    """Texts and types by id, and the ids of the special tokens."""

    tokens: list[str]
    types: list[int]
    eos_id: int
    mask_id: int
    eot_id: int


def make_vocab(n_vocab: int) -> Vocab:
    """256 bytes, the merged tokens, the special tokens, then ids no text leads to, which print as `[id]`."""
    tokens = byte_characters() + ["".join(merge.split()) for merge in MERGES]
    types = [TokenType.NORMAL] * len(tokens)
    tokens += SPECIALS
    types += [TokenType.CONTROL] * len(SPECIALS)
    if n_vocab < len(tokens):
        raise ValueError(f"the vocabulary needs at least {len(tokens)} tokens")
    tokens += [f"[{i}]" for i in range(len(tokens), n_vocab)]
    types += [TokenType.NORMAL] * (n_vocab - len(types))
    return Vocab(tokens, types, tokens.index(END_OF_TEXT), tokens.index(MASK), tokens.index(IM_END))


def write_vocab(writer: GGUFWriter, vocab: Vocab, with_mask: bool) -> None:
    """Adds the tokenizer's keys."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocab.tokens)
    writer.add_token_types(vocab.types)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(vocab.eos_id)
    writer.add_eos_token_id(vocab.eos_id)
    writer.add_eot_token_id(vocab.eot_id)
    writer.add_pad_token_id(vocab.eos_id)
    if with_mask:
        writer.add_mask_token_id(vocab.mask_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

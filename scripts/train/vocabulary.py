"""The byte-level BPE tokeniser: trained on task text, split like llama.cpp's `qwen2` pre-tokeniser.

Digits are single tokens, words and punctuation runs are merged. The four control tokens come first.

usage: vocabulary.py OUTPUT_FILE
"""

import random
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import tasks

EOS, MASK, IM_START, IM_END = range(4)
CONTROL_TOKENS = ["<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 512
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def chat_prompt(prompt):
    """One user message as llama.cpp's ChatML template renders it."""
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def set_byte_level(tokenizer):
    """Gives `tokenizer` the splitting and the byte alphabet, and returns it."""
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(n_examples=12000):
    """Trains the BPE on training prompts and answers."""
    rng = random.Random(0)
    texts = []
    for _ in range(n_examples):
        texts += [*tasks.draw(rng.choice(list(tasks.GENERATORS)), "train", rng), "user\n", "assistant\n"]
    tokenizer = set_byte_level(Tokenizer(models.BPE()))
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=CONTROL_TOKENS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"vocabulary has {tokenizer.get_vocab_size()} tokens, expected {VOCAB_SIZE}")
    return tokenizer


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    train_tokenizer().save(sys.argv[1])

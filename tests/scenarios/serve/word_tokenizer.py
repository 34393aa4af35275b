"""A tokenizer as Hugging Face's `transformers` loads it, of words: `python word_tokenizer.py FOLDER`.

Each word of a text is a token, as for the server's own tokenizer.
"""

import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrst"


def main() -> None:
    words = [f"{one}{two}{three}" for one in LETTERS for two in LETTERS for three in LETTERS]
    vocabulary = {word: place for place, word in enumerate(["<unk>", "<eos>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>")
    fast.save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()

"""Synthetic tasks with exact answers, and the generator of the validation and test files.

Six tasks: `add` (a sum with its working), `word` (a two-step word problem with its working), `sort`, `reverse`,
`spell` (a number in words) and `json`. A prompt belongs to exactly one split, chosen by a hash of its text, so the
three splits are disjoint however many prompts are drawn and with whatever seed.

usage: tasks.py OUTPUT_DIR      writes OUTPUT_DIR/{validation,test}.jsonl, one {"task", "prompt", "answer"} per line
"""

import hashlib
import json
import random
import sys
from pathlib import Path

SPLIT_SIZES = {"validation": 600, "test": 3000}
SPLIT_SEEDS = {"train": 1, "validation": 2, "test": 3}

NAMES = "Ana Bob Eva Ida Leo Max Mia Sam Tom Zoe".split()
CITIES = "Cairo Lima Oslo Paris Quito Rome Seoul Tokyo".split()
HOBBIES = "chess films jazz maps tea yoga".split()
ITEMS = "apples books cards coins eggs nuts pens shells".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
         "seventeen eighteen nineteen").split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def add(rng):
    """Column addition from the ones upwards: each step is digit + digit + carry = two digits."""
    n_digits = rng.choices((2, 3, 4), (1, 6, 3))[0]
    low, high = 10 ** (n_digits - 1), 10 ** n_digits - 1
    a, b = rng.randint(low, high), rng.randint(low, high)
    steps, carry = [], 0
    for place in range(n_digits):
        x, y = a // 10 ** place % 10, b // 10 ** place % 10
        steps.append(f"{x}+{y}+{carry}={x + y + carry:02d}")
        carry = (x + y + carry) // 10
    return f"Add: {a} + {b}", f"{', '.join(steps)}, sum {a + b}"


def word(rng):
    """Two steps, the second using the result of the first."""
    name, other = rng.sample(NAMES, 2)
    item = rng.choice(ITEMS)
    kind = rng.randrange(4)
    if kind == 0:  # gain, then loss
        a, b = rng.randint(3, 12), rng.randint(2, 9)
        c = rng.randint(2, min(9, a + b - 1))
        gain, loss = rng.choice(("buys", "finds", "gets")), rng.choice(("sells", "loses"))
        story = f"{name} has {a} {item}, {gain} {b} more, then {loss} {c}. How many {item} now?"
        first, second = (f"{a}+{b}", a + b), (f"{a + b}-{c}", a + b - c)
    elif kind == 1:  # loss, then gain
        a, c = rng.randint(5, 12), rng.randint(2, 9)
        b = rng.randint(2, min(9, a - 1))
        loss, gain = rng.choice(("sells", "loses")), rng.choice(("buys", "finds", "gets"))
        story = f"{name} has {a} {item}, {loss} {b}, then {gain} {c} more. How many {item} now?"
        first, second = (f"{a}-{b}", a - b), (f"{a - b}+{c}", a - b + c)
    elif kind == 2:  # bags of equal size, then loss
        a, b = rng.randint(2, 5), rng.randint(2, 5)
        c = rng.randint(2, min(9, a * b - 1))
        loss = rng.choice(("sells", "loses"))
        story = f"{name} has {a} bags of {b} {item} and {loss} {c} {item}. How many {item} now?"
        first, second = (f"{a}*{b}", a * b), (f"{a * b}-{c}", a * b - c)
    else:  # a comparison, then the total of two people
        a, b = rng.randint(2, 12), rng.randint(2, 9)
        story = f"{name} has {a} {item}. {other} has {b} more than {name}. How many {item} in all?"
        first, second = (f"{a}+{b}", a + b), (f"{a}+{a + b}", a + a + b)
    working = f"{first[0]}={first[1]}, {second[0]}={second[1]}"
    return story, f"{working}. The answer is {second[1]} {item}."


def sort(rng):
    """Distinct two-digit numbers in rising order."""
    numbers = rng.sample(range(10, 100), rng.randint(4, 7))
    return "Sort: " + " ".join(map(str, numbers)), " ".join(map(str, sorted(numbers)))


def reverse(rng):
    """Distinct letters in reverse order."""
    letters = rng.sample(LETTERS, rng.randint(5, 11))
    return "Reverse: " + " ".join(letters), " ".join(reversed(letters))


def below_thousand(n):
    """Words of 1..999."""
    words = [UNITS[n // 100], "hundred"] if n >= 100 else []
    n %= 100
    if n >= 20:
        words.append(TENS[n // 10])
        n %= 10
    if n:
        words.append(UNITS[n])
    return words


def spell(rng):
    """A number of three to six digits in English words."""
    n = rng.randint(100, 10 ** rng.choices((3, 4, 5, 6), (1, 3, 4, 4))[0] - 1)
    words = below_thousand(n // 1000) + ["thousand"] if n >= 1000 else []
    if n % 1000:
        words += below_thousand(n % 1000)
    return f"Spell: {n}", " ".join(words)


def json_record(rng):
    """One or two people as JSON objects; two make the longest answers."""
    people = rng.sample(NAMES, rng.choice((1, 2)))
    texts, objects = [], []
    for name in people:
        age, count = rng.randint(10, 99), rng.randint(2, 99)
        city, item, likes = rng.choice(CITIES), rng.choice(ITEMS), rng.choice(HOBBIES)
        texts.append(f"{name}, age {age}, lives in {city}, likes {likes}, owns {count} {item}")
        objects.append({"name": name, "age": age, "city": city, "likes": likes,
                        "owns": {"item": item, "count": count}})
    return "JSON: " + "; ".join(texts), json.dumps(objects if len(objects) > 1 else objects[0])


GENERATORS = {"add": add, "word": word, "sort": sort, "reverse": reverse, "spell": spell, "json": json_record}


def split_of(prompt):
    """The split a prompt belongs to: 1/16 validation, 1/8 test, the rest train."""
    bucket = hashlib.sha256(prompt.encode()).digest()[0] % 16
    return "validation" if bucket == 0 else "test" if bucket <= 2 else "train"


def draw(task, split, rng):
    """Draws one (prompt, answer) of `task` that belongs to `split`."""
    while True:
        prompt, answer = GENERATORS[task](rng)
        if split_of(prompt) == split:
            return prompt, answer


def fixed_split(split):
    """All examples of a file split: equal shares of the tasks, no prompt twice."""
    rng = random.Random(SPLIT_SEEDS[split])
    seen, examples = set(), []
    for task in GENERATORS:
        share = SPLIT_SIZES[split] // len(GENERATORS)
        while share:
            prompt, answer = draw(task, split, rng)
            if prompt not in seen:
                seen.add(prompt)
                examples.append({"task": task, "prompt": prompt, "answer": answer})
                share -= 1
    rng.shuffle(examples)
    return examples


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for split in SPLIT_SIZES:
        lines = [json.dumps(example) + "\n" for example in fixed_split(split)]
        (Path(sys.argv[1]) / f"{split}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()

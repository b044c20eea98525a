"""The page of the book that shows every comparison and every difference, made from what the tests run."""

import re

from . import contestants
from .contest import FACTOR, MASKS, SEEING, SIZES, TOLERANCE, TOLERANCE_OF_LAYERS, Comparison
from .differences import DIFFERENCES

PAGE = """# Our code beside other people's

Each row of the tables below holds one of the course's objects and what computes the same in another library. Both are given the
same random inputs and parameters; every result and every gradient is compared, in {cases:,} cases. This page is written by
`tools/comparisons.py` from the tests that run them.

{tables}

## What the words mean

**How close.** A difference is measured as a part of the largest number in the right result, which is what the other library
computes in float64 from the same numbers. No difference in any case is larger than this:

{bounds}

In the shorter types such a bound forgives much, so there ours must also be at most {factor:g} times as far from the right result
as the other library's own result in that type, or as the type's precision.

**Cases.** Their number, then the types of the numbers, the modes and the masks. Each mask meets each of these sizes, except that nothing causal is asked of more queries than keys, and the modes
take turns: {sizes}. In self-attention there are as many queries as keys.

**Types.** ReLU has a kink: a number that is rounded to its other side has another gradient, so layers with ReLU are compared
in the two longer types. Where float64 is missing, the other library does not compute in it.

**Modes.** Training and evaluation with gradients, and evaluation without ("no grad"), where PyTorch's layers take other paths.
Functions know no mode; they run with and without gradients.

**Compared.** Of a converter of masks, *read* is our layer under the other library's mask, converted, and *written* is the other
library's layer under ours, converted.

**Masks.** Each says what a query may attend to. Those that are drawn leave two keys at least, since the weight of a single key
is 1 whatever its score.

{masks}

## Where they differ

Each of these is a test, too: it shows what the other library does, and what ours does.

{differences}
"""

CODED = r"`\g<0>`"
CODE = re.compile(r"(?<![\w-])(?!\d)[\w.]*[._]\w[\w.]*|[A-Z]+[a-z0-9]+[A-Z]\w*|\b(?:eager|gelu|kdim|relu|sdpa|vdim)\b")


def page() -> str:
    """Return the text of the page."""
    return PAGE.format(
        cases=sum(map(cases_of, contestants.ALL)),
        tables="\n\n".join(f"## {name}\n\n{comparisons(rows)}" for name, rows in contestants.BY_LIBRARY.items()),
        bounds=table(
            ("type", "functions and attention", "layers and models"),
            [(name_of(dtype), power(TOLERANCE[dtype]), power(TOLERANCE_OF_LAYERS[dtype])) for dtype in TOLERANCE],
        ),
        factor=FACTOR,
        sizes="; ".join(
            f"batch {size.batch}, {size.heads} heads of {size.d_head} features, {size.queries} queries, {size.keys} keys"
            for size in SIZES
        ).replace(" 1 heads", " 1 head"),
        masks=table(("mask", "shape and meaning"), [*MASKS.items()]),
        differences="\n\n".join(f"### {name}\n\n{differences(name)}" for name in contestants.BY_LIBRARY),
    )


def comparisons(rows: tuple[Comparison, ...]) -> str:
    return table(
        ("ours, and theirs", "what is compared", "cases"),
        [
            (
                f"{CODE.sub(CODED, one.ours)}<br>{CODE.sub(CODED, one.theirs)}",
                ", ".join(one.compared()),
                f"{cases_of(one)}: {numbers_of(one)}; {', '.join(one.modes)}; {masks_of(one)}",
            )
            for one in rows
        ],
    )


def numbers_of(one: Comparison) -> str:
    return "all four types" if len(one.dtypes) == len(TOLERANCE) else ", ".join(map(name_of, one.dtypes))


def masks_of(one: Comparison) -> str:
    named = {tuple(MASKS): "every mask", SEEING: "every mask but *empty row*", ("none",): "no mask"}
    return named.get(one.masks, f"masks: {', '.join(one.masks)}")


def differences(library: str) -> str:
    return "\n".join(f"- **{one.theirs}** {one.ours}" for one in DIFFERENCES if one.library == library)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def power(number: float) -> str:
    digit, exponent = f"{number:.0e}".split("e")
    times = "" if digit == "1" else rf"{digit} \cdot "
    return f"${times}10^{{{int(exponent)}}}$"


def cases_of(comparison: Comparison) -> int:
    return sum(1 for dtype in comparison.dtypes for _ in comparison.cases(dtype))


def name_of(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")

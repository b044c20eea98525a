"""Draw the picture of the index page: what two heads of the pretrained model look at in the running sentence.

Above the words, the head that looks at the word before (layer 0, head 2); below, one that looks for the noun (layer 3,
head 1). An arrow leads from the word that asks to the word it looks at; the thicker, the more. Arrows to the special
tokens and those lighter than 0.1 are left out. Ink and colours are readable on a white and on a dark page.
"""

from pathlib import Path

from torch import Tensor

from mha_course import pretrained

TARGET = Path(__file__).parents[1] / "book" / "images" / "attention.svg"
SENTENCE = "The cat sat on the mat"
CENTRES = (62, 158, 256, 350, 442, 540)  # of the words, in a picture 600 wide
BASELINE, TOP, BOTTOM = 118, 88, 134
INK, BLUE, ORANGE = "#7a7a7a", "#3b82c4", "#c2701c"
LEAST = 0.1


def arrow(source: int, target: int, weight: float, *, above: bool) -> str:
    """Draw an arc between two words, as wide as the weight says."""
    side, colour = (-1, BLUE) if above else (1, ORANGE)
    start = CENTRES[source] + (9 if target > source else -9)
    end = CENTRES[target] + (-9 if target > source else 9)
    level = TOP if above else BOTTOM
    height = level + side * (22 + 0.30 * abs(end - start))
    dashes = "" if above else ' stroke-dasharray="9 5"'
    width = 1 + 4.5 * weight
    head = f"M{end - 6} {level + side * 9}L{end} {level}L{end + 6} {level + side * 9}"
    return (
        f'<g fill="none" stroke="{colour}" stroke-width="{width:.1f}" stroke-linecap="round" stroke-linejoin="round">'
        f'<path d="M{start} {level}C{start} {height:.0f} {end} {height:.0f} {end} {level}"{dashes}/>'
        f'<path d="{head}"/></g>'
    )


def picture(before: Tensor, noun: Tensor) -> str:
    """Put words, arrows and captions together; each tensor holds one head's weights, query by key."""
    words = [
        f'<text x="{x}" y="{BASELINE}" font-size="27" font-weight="600">{word}</text>'
        for x, word in zip(CENTRES, SENTENCE.split(), strict=True)
    ]
    arrows = [
        arrow(query, key, round(weights[query, key].item(), 2), above=above)
        for weights, above in ((before, True), (noun, False))
        for query in range(len(CENTRES))
        for key in range(len(CENTRES))
        if query != key and weights[query, key] >= LEAST
    ]
    captions = [
        f'<text x="300" y="24" font-size="22" fill="{BLUE}">one head looks at the word before</text>',
        f'<text x="300" y="242" font-size="22" fill="{ORANGE}">another looks for the noun</text>',
    ]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 252" '
            f'font-family="system-ui, sans-serif" text-anchor="middle" fill="{INK}">',
            *words,
            *arrows,
            *captions,
            "</svg>\n",
        ]
    )


def draw() -> str:
    """Ask the model and draw what it says."""
    model = pretrained.load()
    maps = model.attention_maps(*model.tokenize([SENTENCE]))[:, 0, :, 1:-1, 1:-1]  # without [CLS] and [SEP]
    return picture(maps[0, 2], maps[3, 1])


if __name__ == "__main__":
    TARGET.write_text(draw(), "utf-8")

"""Make the translator that comes with the course from a training run: measured again, and in half precision.

mha-course train numbers --folder run
.venv/bin/python tools/ship_translator.py run
"""

import sys
from importlib.metadata import version
from pathlib import Path

from mha_course import checkpoint
from mha_course.tasks.translator import SHIPPED, load


def main() -> None:
    """Read a run's checkpoint, write the course's."""
    run = Path(sys.argv[1])
    _, about = checkpoint.read(run)
    translator = load(run)
    translator.model.half().float()  # rounded, as they will be stored
    right = translator.right(translator.task.held_out(2500))
    tensors = {f"model.{name}": tensor.half() for name, tensor in translator.model.state_dict().items()}
    checkpoint.write(
        SHIPPED,
        tensors,
        {
            "settings": about["settings"],
            "losses": [round(step["loss"], 4) for step in about["history"]],
            "exact match": {
                step["step"] + 1: step["metrics"]["exact match"] for step in about["history"] if step["metrics"]
            },
            "held out": {"right": int(right.sum()), "of": len(right)},
            "torch": version("torch").partition("+")[0],
        },
    )
    (SHIPPED / checkpoint.NAME).chmod(0o644)
    sys.stdout.write(f"{int(right.sum()):,} of {len(right):,} are right; {SHIPPED / checkpoint.NAME} is written\n")


if __name__ == "__main__":
    main()

"""Submissions that a grader must survive, as text: nothing here runs where it is written down.

FOLDER stands for the folder of the submissions, PACKAGE for that of the course, RIGHT for a right answer.
"""

from dataclasses import dataclass, field

RIGHT = """
def split_heads(x, num_heads):
    batch, length, width = x.shape
    if width % num_heads:
        raise ValueError("heads must divide the width")
    return x.reshape(batch, length, num_heads, width // num_heads).transpose(1, 2)
"""


@dataclass(frozen=True)
class Hostile:
    """One submission, a Python file or the cells of a notebook, and what is to be said of it."""

    name: str
    source: str | bytes | tuple[str, ...]
    verdict: str
    says: str = ""  # a pattern that the message holds
    unprotected: str = ""  # the verdict where learner code can't be kept from it, if another
    suffix: str = ".py"
    link: str = field(default="")


def called(body: str, imports: str = "") -> str:
    """An answer that does something when it is called."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"import torch\n{imports}\n\ndef split_heads(x, num_heads):\n{lines}\n"


def and_right(body: str, imports: str = "") -> str:
    """An answer that does something when it is called, and then answers right."""
    right = RIGHT.replace("split_heads", "right")
    return right + called(f"{body.strip()}\nreturn right(x, num_heads)", imports)


CATALOGUE = (
    # It does not come back.
    Hostile("never_ends", called("while True: pass"), "timed_out"),
    Hostile("never_ends_at_top_level", "while True: pass\n" + RIGHT, "timed_out", "before it was even called"),
    Hostile(
        "waits_for_ever_deaf_to_signals",
        called(
            """
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    time.sleep(9)
""",
            "import signal, time",
        ),
        "timed_out",
    ),
    Hostile(
        "writes_to_standard_output_without_end",
        called("while True: os.write(1, b'x' * 9999)", "import os"),
        "timed_out",
    ),
    Hostile("loops_inside_a_library", called("(1 << 10**8) ** 10**5"), "timed_out|crashed|failed"),
    # It ends itself.
    Hostile("sys_exit", called("sys.exit()", "import sys"), "crashed", "ended the program"),
    Hostile("sys_exit_at_top_level", "import sys\nsys.exit(0)\n" + RIGHT, "passed"),
    Hostile("raises_system_exit", called("raise SystemExit(0)"), "crashed"),
    Hostile("raises_keyboard_interrupt", called("raise KeyboardInterrupt"), "failed", "KeyboardInterrupt"),
    Hostile(
        "raises_base_exception", "class Odd(BaseException): pass\n" + called("raise Odd('odd')"), "failed", "Odd: odd"
    ),
    Hostile("os_exit", called("os._exit(0)", "import os"), "crashed", "exit code 0"),
    Hostile("os_exit_at_top_level", "import os\nos._exit(0)\n" + RIGHT, "crashed", "exit code 0"),
    Hostile("segmentation_fault", called("ctypes.string_at(0)", "import ctypes"), "crashed", "segmentation fault"),
    Hostile("aborts", called("os.abort()", "import os"), "crashed", "signal 6"),
    Hostile("kills_itself", called("os.kill(os.getpid(), 9)", "import os"), "crashed", "was killed"),
    Hostile("recurses_without_end", called("return split_heads(x, num_heads)"), "failed", "RecursionError"),
    Hostile("reads_input", called("input('heads? ')"), "failed", "EOFError"),
    # It takes more than its share.
    Hostile("fork_bomb", called("while True: os.fork()", "import os"), "crashed|timed_out|failed"),
    Hostile("prints_without_end", called("while True: print('x' * 999)"), "failed", "printed more than"),
    Hostile("prints_without_end_at_top_level", "while True: print('x' * 999)\n" + RIGHT, "failed", "PrintedTooMuch"),
    Hostile(
        "prints_without_end_and_hides_it",
        and_right("""
try:
    while True: print('x' * 999)
except BaseException:
    pass
"""),
        "passed",
        "It prints",
    ),
    Hostile("eats_memory", called("kept = []\nwhile True: kept.append(bytes(10**9))"), "crashed", "memory"),
    Hostile(
        "eats_memory_with_tensors",
        called("kept = []\nwhile True: kept.append(torch.empty(10**8))"),
        "crashed",
        "memory",
    ),
    Hostile(
        "fills_the_disk",
        and_right(
            """
for folder in (os.environ["HOME"], "FOLDER", *("/dev/shm", "/") * (os.getppid() == 1)):
    for number in range(20):
        try:
            with open(f"{folder}/mha-course-filler-{number}", "wb") as file:
                file.write(bytes(2**20))
        except OSError:
            pass
""",
            "import os",
        ),
        "passed",
    ),
    Hostile(
        "leaves_threads_behind",
        and_right(
            """
def loop():
    while True: pass
threading.Thread(target=loop, daemon=True).start()
""",
            "import threading",
        ),
        "passed|timed_out",
    ),
    Hostile(
        "leaves_a_daemon_behind",
        and_right(
            """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"mha-straggler")
        while True: time.sleep(9)
    os._exit(0)
""",
            "import ctypes, os, time",
        ),
        "passed",
    ),
    # It looks for the answer elsewhere.
    Hostile(
        "opens_a_connection",
        and_right(
            """
server = socket.create_server(("127.0.0.1", 0))
for address in (("127.0.0.1", PORT), ("10.255.255.1", 80)):
    try:
        connection = socket.create_connection(address, timeout=0.2)
        if connection.getsockname() != connection.getpeername():  # a free port may be connected to itself
            return "connected"
    except OSError:
        pass
""",
            "import socket",
        ),
        "passed",
        unprotected="failed",
    ),
    Hostile(
        "reads_another_submission",
        called(
            """
for path in (*glob.glob("FOLDER/*_next.py"), *glob.glob("/submission/*")):
    found = {}
    exec(open(path).read(), found)
    return found["split_heads"](x, num_heads)
""",
            "import glob",
        ),
        "failed",
        unprotected="passed",
    ),
    Hostile(
        "reads_the_solution",
        called("""
found = {"__name__": "found"}
exec(open("PACKAGE/multi_head.py").read().replace("from mha_course", "raise ValueError #"), found)
return found["split_heads"](x, num_heads)
"""),
        "failed",
    ),
    Hostile(
        "imports_the_solution",
        """
from mha_course.multi_head import split_heads as theirs

def split_heads(x, num_heads):
    return theirs(x, num_heads)
""",
        "not_gradable",
        "line 2 takes mha_course.multi_head.split_heads",
    ),
    Hostile("is_the_solution", "from mha_course.multi_head import split_heads\n", "not_attempted"),
    Hostile(
        "imports_the_solution_in_secret",
        called(
            """
return importlib.import_module("mha_course." + "multi_head").split_heads(x, num_heads)
""",
            "import importlib",
        ),
        "failed",
        "can't be used in this answer",
    ),
    Hostile(
        "imports_the_solution_past_the_guard",
        called(
            """
sys.meta_path[:] = [finder for finder in sys.meta_path if "_Finder" not in type(finder).__name__]
for name in [name for name in sys.modules if name.startswith("mha_course")]:
    del sys.modules[name]
return importlib.import_module("mha_course.multi_head").split_heads(x, num_heads)
""",
            "import importlib, sys",
        ),
        "failed",
        unprotected="passed",
    ),
    # It goes for the grader.
    Hostile(
        "kills_its_parent",
        and_right("os.kill(os.getppid(), 9)", "import os"),
        "passed",
        unprotected="crashed",
    ),
    Hostile(
        "kills_all_it_can_see",
        and_right(
            "if os.getppid() == 1:\n    with contextlib.suppress(OSError): os.kill(-1, 9)", "import contextlib, os"
        ),
        "passed",
    ),
    Hostile(
        "stops_its_parent",
        and_right("os.kill(os.getppid(), signal.SIGSTOP)", "import os, signal"),
        "passed",
        unprotected="passed|crashed",
    ),
    Hostile(
        "writes_into_its_parent",
        and_right(
            """
attached = ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)
try:
    open(f"/proc/{os.getppid()}/mem", "r+b").close()
    attached = 0
except OSError:
    pass
assert attached == -1
""",
            "import ctypes, os",
        ),
        "passed",
        unprotected="passed|failed",
    ),
    Hostile(
        "writes_to_every_open_file",
        called(
            """
for number in range(3, 999):
    try:
        os.write(number, b"garbage" * 99)
    except OSError:
        pass
""",
            "import os",
        ),
        "crashed",
        "not a plain value",
    ),
    Hostile(
        "hangs_up",
        called("os.closerange(3, 999)\ntime.sleep(9)", "import os, time"),
        "crashed",
        "closed its connection",
    ),
    Hostile(
        "answers_in_the_grader_s_place",
        called(
            """
for number in range(3, 999):
    try:
        header = b'{"dict":{"results":[],"error":null,"printed":0}}'
        body = len(header).to_bytes(4, "big") + header
        os.write(number, len(body).to_bytes(4, "big") + body)
    except OSError:
        pass
""",
            "import os",
        ),
        "failed|crashed",
    ),
    Hostile(
        "answers_in_the_loader_s_place",
        r"""
import os
for number in range(3, 999):
    try:
        os.write(number, b"\0\0\0\x0f" + b"\0\0\0\x0b" + b'{"dict":{}}')
    except OSError:
        pass
"""
        + RIGHT,
        "crashed",
        "not a result",
    ),
    Hostile(
        "puts_a_link_in_the_place_of_its_folder",
        and_right(
            """
home = os.environ["HOME"]
try:
    shutil.rmtree(home)
    os.symlink("FOLDER", home)
except OSError:
    pass
""",
            "import os, shutil",
        ),
        "passed",
    ),
    Hostile(
        "locks_its_folder",
        and_right(
            """
home = os.environ["HOME"]
with contextlib.suppress(OSError):
    os.makedirs(home + "/locked/inner", exist_ok=True)
    os.chmod(home + "/locked", 0)
    os.chmod(home, 0)
""",
            "import contextlib, os",
        ),
        "passed",
    ),
    Hostile(
        "breaks_the_builtins",
        called("import builtins\nbuiltins.isinstance = builtins.len = builtins.type = None"),
        "failed|crashed",
    ),
    Hostile(
        "patches_comparisons",
        called("""
for name in ("allclose", "equal", "isclose"):
    setattr(torch, name, lambda *args, **kwargs: True)
torch.testing.assert_close = lambda *args, **kwargs: None
return torch.zeros(x.size(0), num_heads, x.size(1), x.size(2) // num_heads)
"""),
        "failed",
    ),
    Hostile(
        "equals_everything",
        """
import torch

class Equal(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True

    def __eq__(self, other):
        return True

def split_heads(x, num_heads):
    return torch.zeros(3).as_subclass(Equal)
""",
        "failed",
        "object of type Equal",
    ),
    # It gives back what is no answer.
    Hostile("returns_more_than_there_is_memory", called("return x.flatten()[:1].expand(10**11)"), "crashed", "memory"),
    Hostile("returns_more_than_can_be_sent", called("return torch.zeros(3 * 10**7)"), "failed", "TooLarge"),
    Hostile("returns_endless_depth", called("deep = []\ndeep.append(deep)\nreturn deep"), "failed"),
    Hostile(
        "returns_an_odd_object",
        """
class Odd:
    def __getattribute__(self, name):
        raise RuntimeError("odd")
    __str__ = __repr__ = __eq__ = __len__ = __bool__ = __getattribute__

def split_heads(x, num_heads):
    return Odd()
""",
        "failed",
    ),
    Hostile(
        "raises_without_a_text",
        """
class Odd(Exception):
    def __str__(self):
        raise RuntimeError("odd")

def split_heads(x, num_heads):
    raise Odd
""",
        "failed",
        "Odd",
    ),
    Hostile(
        "raises_an_exit_for_a_text",
        """
class Odd(Exception):
    def __str__(self):
        raise SystemExit

def split_heads(x, num_heads):
    raise Odd
""",
        "failed|crashed",
    ),
    Hostile(
        "is_a_class",
        "class split_heads:\n    pass\n\n    def __init__(self, x, num_heads): self.x = x\n",
        "failed",
        "is a class",
    ),
    Hostile("is_a_number", "split_heads = 4\n", "failed", "can't be called"),
    Hostile("takes_no_arguments", "def split_heads():\n    return 1\n", "failed", "TypeError"),
    Hostile("returns_nothing", called("x.shape"), "failed", "None"),
    Hostile("returns_its_input", called("return x"), "failed"),
    # It was not done, or not handed in well.
    Hostile(
        "stub", called("raise NotImplementedError('replace this line by your own')"), "not_attempted", "empty task"
    ),
    Hostile("stub_of_pass", called("pass"), "not_attempted"),
    Hostile("stub_of_dots", called("..."), "not_attempted"),
    Hostile("stub_of_words", called("'''Split.'''"), "not_attempted"),
    Hostile(
        "left_over",
        RIGHT.replace(":\n    batch", ":\n    raise NotImplementedError\n    batch", 1),
        "not_attempted",
        "line 3: `raise NotImplementedError` stands above",
    ),
    Hostile(
        "nothing_of_the_name",
        "def split(x, num_heads):\n    return x\n",
        "not_attempted",
        "Nothing of the name split_heads",
    ),
    Hostile(
        "syntax_error", "import torch\n\ndef split_heads(x, num_heads:\n    return x\n", "not_gradable", "line 3: "
    ),
    Hostile("nested_without_end", "x = " + "(" * 9999 + ")" * 9999 + RIGHT, "not_gradable"),
    Hostile("null_character", b"x = '\0'\n" + RIGHT.encode(), "not_gradable", "null"),
    Hostile("not_utf8", b"# \xff\xfe\n" + RIGHT.encode(), "not_gradable", "not valid UTF-8"),
    Hostile("binary", bytes(range(256)) * 9, "not_gradable"),
    Hostile("empty", b"", "not_gradable", "holds no code"),
    Hostile("blank", b" \n\t\n", "not_gradable", "holds no code"),
    Hostile("link_to_a_file_of_the_system", b"", "not_gradable", "link that leads elsewhere", link="/etc/passwd"),
    Hostile("link_to_itself", b"", "not_gradable", link="FOLDER/link_to_itself.py"),
    Hostile(
        "broken_notebook",
        b'{"cells": [{"cell_type": "code", "source": ["def',
        "not_gradable",
        "is not a notebook",
        suffix=".ipynb",
    ),
    Hostile("notebook_of_nothing", b"[]", "not_gradable", "no list of cells", suffix=".ipynb"),
    Hostile("notebook_nested_without_end", b"[" * 99999, "not_gradable", "is not a notebook", suffix=".ipynb"),
    Hostile("right_then_wrong", (RIGHT, called("return x")), "failed", "defined 2 times", suffix=".ipynb"),
    Hostile("wrong_then_right", (called("return x"), RIGHT), "passed", "defined 2 times", suffix=".ipynb"),
    Hostile("check_deleted", (RIGHT,), "passed", suffix=".ipynb"),
    Hostile("check_broken", (RIGHT + "\ncheck(split_heads, now)", "this is no Python"), "passed", suffix=".ipynb"),
    # It changes what is shared by all.
    Hostile("seeds", and_right("torch.manual_seed(0)\ntorch.rand(9)"), "passed"),
    Hostile(
        "changes_the_default_type",
        "import torch\ntorch.set_default_dtype(torch.float64)\n" + and_right("torch.set_default_dtype(torch.float16)"),
        "passed",
    ),
    Hostile("turns_gradients_off", "import torch\ntorch.set_grad_enabled(False)\n" + RIGHT, "passed"),
    Hostile("takes_more_threads", and_right("torch.set_num_threads(16)"), "passed"),
    Hostile(
        "warns",
        and_right("warnings.warn('careful')", "import warnings\nwarnings.simplefilter('error')"),
        "passed|failed",
    ),
)

import ast
import inspect

from mha_course import multi_head
from mha_course.figures import show_source, table


def code(markdown):
    lines = markdown.data.splitlines()
    assert (lines[0], lines[-1]) == ("```python", "```")
    return "\n".join(lines[1:-1])


def test_a_source_is_shown_as_it_stands_in_the_package():
    assert code(show_source(multi_head.merge_heads)) == inspect.getsource(multi_head.merge_heads).rstrip()


def test_without_docstrings_the_code_is_the_same():
    shown = code(show_source(multi_head.MultiHeadAttention, docstrings=False))
    assert '"""' not in shown
    assert "\n\n\n" not in shown

    class Stripped(ast.NodeTransformer):
        def visit(self, node):
            self.generic_visit(node)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
            return node

    stored = Stripped().visit(ast.parse(inspect.getsource(multi_head.MultiHeadAttention)))
    assert ast.dump(ast.parse(shown)) == ast.dump(stored)


def test_a_method_is_moved_to_the_margin():
    assert code(show_source(multi_head.MultiHeadAttention.forward)).startswith("def forward(")


def test_a_table_has_a_line_a_row():
    assert table(["heads", "width"], [(1, 768), (12, "**64**")]).data.splitlines() == [
        "| heads | width |",
        "| --- | --- |",
        "| 1 | 768 |",
        "| 12 | **64** |",
    ]

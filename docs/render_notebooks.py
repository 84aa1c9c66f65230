"""Notebooks as pages of the manual. mkdocs uses this file as a hook.

The hook makes one page of every notebook: text, code, and the outputs that are stored
in the notebook. It does not run anything. `python docs/render_notebooks.py` runs all
notebooks and stores their outputs; do this after every change.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"


def on_files(files: Any, config: Any) -> Any:
    """Replace every notebook by a Markdown page and its pictures."""
    from mkdocs.structure.files import File

    for file in list(files):
        if not file.src_uri.startswith("notebooks/"):
            continue
        files.remove(file)
        if file.src_uri.endswith(".ipynb"):
            text, pictures = page(
                json.loads(Path(file.abs_src_path).read_text(encoding="utf-8")),
                file.name,
            )
            uri = file.src_uri.removesuffix(".ipynb")
            edit = f"Download this page as a notebook: `docs/{file.src_uri}`.\n"
            files.append(
                File.generated(config, f"{uri}.md", content=f"{text}\n\n---\n\n{edit}")
            )
            for name, picture in pictures.items():
                files.append(
                    File.generated(config, f"notebooks/{name}", content=picture)
                )
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks lead to their pages."""
    return markdown.replace(".ipynb)", ".md)")


def page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(
            source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        )
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            else:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![Output of the code above]({picture})")
    return "\n\n".join(parts), pictures


def outputs(sources: list[str], name: str) -> Iterator[list[dict[str, Any]]]:
    """Run the code cells of one notebook in order, and yield the outputs of each."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    namespace: dict[str, Any] = {}
    for source in sources:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(source, name, "exec"), namespace)
        stored: list[dict[str, Any]] = []
        if said.getvalue():
            stored.append(
                {
                    "output_type": "stream",
                    "name": "stdout",
                    "text": said.getvalue().splitlines(True),
                }
            )
        for number in plt.get_fignums():
            picture = io.BytesIO()
            plt.figure(number).savefig(picture, format="png", dpi=80)
            data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
            stored.append({"output_type": "display_data", "metadata": {}, "data": data})
        plt.close("all")
        yield stored


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        results = outputs(["".join(cell["source"]) for cell in cells], path.name)
        for count, (cell, stored) in enumerate(zip(cells, results, strict=True), 1):
            cell["outputs"], cell["execution_count"] = stored, count
        path.write_text(
            json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        print(f"Stored the outputs of {path}")


if __name__ == "__main__":
    main()

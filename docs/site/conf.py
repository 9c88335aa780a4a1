"""Sphinx: the pages that stage.py has put into build/docs/source."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

project = "Katt"
author = copyright = "the Katt authors"  # noqa: A001  Sphinx' name
extensions = ["myst_parser", "breathe", "sphinx_copybutton"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
exclude_patterns = ["_xml"]

myst_heading_anchors = 6  # links to headings as GitHub names them
myst_enable_extensions = ["attrs_block"]
suppress_warnings = ["misc.highlighting_failure"]  # a block with "…" in it is shown without colours

breathe_projects = {"katt": str(ROOT / "build/docs/xml")}
breathe_default_project = "katt"
breathe_show_include = False
breathe_domain_by_extension = {"hpp": "cpp"}
cpp_id_attributes = ["KOKKOS_FUNCTION", "KOKKOS_INLINE_FUNCTION", "KOKKOS_FORCEINLINE_FUNCTION"]
cpp_maximum_signature_line_length = 90
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
highlight_language = "text"

html_theme = "furo"
html_title = "Katt"
html_static_path = [str(HERE / "static")]
html_css_files = ["katt.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
copybutton_only_copy_prompt_lines = False

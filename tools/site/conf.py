"""Sphinx's configuration of the site. What is not here is what myst-nb and sphinx-book-theme do by themselves."""

import json
import sys
from pathlib import Path
from urllib.parse import quote

from babel import Locale

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tools import workspace_copy  # noqa: E402 - the project need not be installed
from tools.site import repository, words  # noqa: E402
from tools.site.language import Language  # noqa: E402
from tools.site.search import SearchChinese  # noqa: E402

ADDRESS = repository.url()
GITHUB = ADDRESS is not None and ADDRESS.startswith("https://github.com/")

project = words.TITLE
author = "The contributors of GPU memory, byte by byte"
html_show_copyright = False
html_context = {"default_mode": "auto"}
language = "en"  # `--language` gives another, a folder of translations/
extensions = ["myst_nb", "sphinx_copybutton", "sphinx_design", "tools.site.mathml", "tools.site.moved"]

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
html_math_renderer = "mathml"

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_logo = str(HERE / "static" / "logo.svg")
html_favicon = str(HERE / "static" / "logo.svg")
html_theme_options = {
    "logo": {"text": project, "alt_text": project},
    "show_navbar_depth": 2,
    "show_toc_level": 2,
    "use_download_button": True,
    "navbar_persistent": [],  # the sidebar has the search
}
if ADDRESS:
    html_theme_options |= {
        "repository_url": ADDRESS,
        "repository_branch": "main",
        "use_repository_button": True,
        "use_issues_button": True,
        "use_source_button": True,
    }
if GITHUB:
    # The notebooks' own paths in the repository are their pages' paths here (tools/site/stage.py).
    html_theme_options["launch_buttons"] = {
        "notebook_interface": "jupyterlab",
        "colab_url": "https://colab.research.google.com",
        "binderhub_url": "https://mybinder.org",
    }
copybutton_exclude = ".linenos, .gp, .go"


def in_language(app, config):
    """A site in another language has its title in it, and no buttons that launch the English notebooks."""
    if config.language == "en":
        return
    title = Language(config.language).say(words.TITLE)
    config.html_title = title
    config.html_theme_options["logo"] |= {"text": title, "alt_text": title}
    config.html_theme_options.pop("launch_buttons", None)


def add_kaggle(app, pagename, templatename, context, doctree):
    """A third place to run a chapter; the theme knows the other two."""
    for group in context.get("header_buttons", []):
        if group.get("label") == "launch-buttons":
            file = quote(f"{ADDRESS}/blob/main/{pagename}.ipynb", safe=":/")
            url = f"https://kaggle.com/kernels/welcome?src={file}"
            group["buttons"].append({"type": "link", "text": "Kaggle", "tooltip": "Launch on Kaggle", "url": url})


def add_languages(app, pagename, templatename, context, doctree):
    """A button to the same page in each other language that is built beside this one: `course.py site --all`."""
    codes = app.config.in_languages.split(",") if app.config.in_languages else []
    here = "" if app.config.language == "en" else app.config.language
    up = "../" * (pagename.count("/") + bool(here))
    for code in codes:
        if code == app.config.language or "header_buttons" not in context:
            continue
        folder = "" if code == "en" else f"{code}/"
        name = Locale.parse(code).get_language_name(code)
        button = {"type": "link", "url": f"{up}{folder}{pagename}.html", "text": name, "tooltip": name}
        context["header_buttons"].append({**button, "icon": "fas fa-language", "label": f"language-{code}"})


def only_of_files(app, pagename, templatename, context, doctree):
    """No button to the source of a page that is written by the build and has no file in the repository."""
    suffix = context.get("page_source_suffix") or ""
    if (HERE.parents[1] / f"{pagename}{suffix}").is_file():
        return
    for group in context.get("header_buttons", []):
        if "buttons" in group:
            group["buttons"] = [one for one in group["buttons"] if one.get("label") != "source-file-button"]


def offer_readers_copies(app, error):
    """The notebook that a page offers is the reader's: without outputs, to be run, its solutions collapsed."""
    for path in (Path(app.outdir) / "_sources" / "notebooks").glob("*.ipynb"):
        notebook = json.loads((HERE.parents[1] / "notebooks" / path.name).read_text(encoding="utf-8"))
        if app.config.language != "en":
            notebook = Language(app.config.language).notebook(notebook, f"notebooks/{path.name}")
        path.write_text(json.dumps(workspace_copy.cleared(notebook), indent=1, ensure_ascii=False), encoding="utf-8")


def setup(app):
    app.add_search_language(SearchChinese)
    app.connect("config-inited", in_language)
    app.add_config_value("in_languages", "", "html", str)
    app.connect("html-page-context", add_kaggle, priority=900)
    app.connect("html-page-context", add_languages, priority=902)
    app.connect("html-page-context", only_of_files, priority=901)
    app.connect("build-finished", offer_readers_copies)

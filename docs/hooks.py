"""Links from docs/ to files outside of it lead to the repository (mkdocs.yml)."""

import posixpath
import re

REPOSITORY = "https://github.com/quell-dev/quell/blob/main/"
LINK = re.compile(r"\]\((\.\./[^)\s#]+)")


def on_page_markdown(markdown, page, **_):
    folder = posixpath.dirname("docs/" + page.file.src_uri)

    def absolute(match):
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        return match[0] if target.startswith("docs/") else "](" + REPOSITORY + target

    return LINK.sub(absolute, markdown)

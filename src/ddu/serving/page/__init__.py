"""The page at `/`: plain HTML, CSS and JavaScript beside this file, and what it asks the server for.

The files are told to everybody; what the page asks for needs the token, as all else does.
"""

from ddu.serving.page.routes import PUBLIC, add_page

__all__ = ["PUBLIC", "add_page"]

"""One file per experiment: a specification that measures its rows and writes its page."""

"""Options that take several values at once: `--ood svhn cifar100` is `--ood svhn --ood cifar100`."""

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand


class ManyValues(TyperCommand):
    """A command in which every repeatable option takes all values that follow it, up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments after each value has its option in front of it."""
        options = [name for option in self.params if getattr(option, "multiple", False) for name in option.opts]
        return super().parse_args(ctx, repeat_options(args, options))


def repeat_options(arguments: Iterable[str], options: Iterable[str]) -> list[str]:
    """Writes an option again in front of each of its values after the first.

    >>> repeat_options(["runs/mnist", "--ood", "svhn", "cifar100", "-o", "rows.csv"], ["--ood"])
    ['runs/mnist', '--ood', 'svhn', '--ood', 'cifar100', '-o', 'rows.csv']
    """
    options = set(options)
    written: list[str] = []
    current, values = "", 0
    for argument in arguments:
        if argument.startswith("-"):
            current, values = argument if argument in options else "", 0
        elif current:
            written += [current] * (values > 0)
            values += 1
        written.append(argument)
    return written

"""SIGTERM, which ends a training as Ctrl-C does. Everything here imports Lightning."""

import signal
import threading
from typing import Any, NoReturn

from lightning.pytorch import Callback, LightningModule, Trainer

EXIT_CODE = 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM came. Lightning shuts everything down as after Ctrl-C, other ranks among it."""


class Termination(Callback):
    """Ends a training at once on SIGTERM.

    Lightning's own handler waits for the end of the batch, and for ranks that may never answer; it is replaced. What
    the caller has set up for SIGTERM stays in force. Outside the main thread Python allows no handler: there the
    process ends as any other does.
    """

    def __init__(self) -> None:
        self.before = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminate if self.before == signal.SIG_DFL else self.before)


def _terminate(number: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise Terminated

"""What a client may send, and the answer to what it may not."""

from dataclasses import dataclass

from ddu.errors import InputError


@dataclass(frozen=True)
class Limits:
    """How much is taken at a time.

    Attributes:
        body: Bytes of one request.
        bodies: Bytes of all requests that are being read and judged.
        seconds: To send a request in.
        pixels: Of one image once it is decoded, and of all images of a request once they are scaled.
        rows: Inputs of one request.
        queue: Inputs that wait to be judged.
        batch: Inputs that are judged together.
        linger: Seconds for which the first input of a batch waits for others.
    """

    body: int = 16 * 2**20
    bodies: int = 256 * 2**20
    seconds: float = 30.0
    pixels: int = 40_000_000
    rows: int = 256
    queue: int = 1024
    batch: int = 64
    linger: float = 0.002

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= self.queue:
            raise InputError(
                f"The queue must have room for the {self.rows} inputs of one request. Got {self.queue} instead."
            )
        if self.batch < 1:
            raise InputError(f"A batch must have at least 1 input. Got {self.batch} instead.")


class RefusedError(Exception):
    """A request that is not answered with a prediction.

    Attributes:
        status: The HTTP status.
        reason: For people.
        retry_after: After how many seconds to try again, where that makes sense.
    """

    def __init__(self, status: int, reason: str, retry_after: int | None = None):
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

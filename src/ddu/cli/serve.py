"""`ddu serve`: judges what clients send over HTTP."""

import ipaddress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddu.cli._app import DetectorFolder
from ddu.errors import InputError
from ddu.messages import require


def serve(
    source: Annotated[
        str | None,
        typer.Argument(
            help="What judges: the folder of a run, of a detector that `ddu fit` wrote around a network of timm or "
            "torchvision, or of an exported bundle; or module:function, which returns your network, with --detector."
        ),
    ] = None,
    detector: DetectorFolder = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve the demo's detector, and make it first.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="0.0.0.0 is for all of the network to reach.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(envvar="DDU_TOKEN", show_default=False, help="Clients must send it: Authorization: Bearer TOKEN."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What clients call the model. [default: as the folder]")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Inputs that are judged together, at most.")] = 64,
    queue: Annotated[int, typer.Option(min=1, help="Inputs that may wait; more are answered with 503.")] = 1024,
) -> None:
    """Serve a detector over HTTP: predictions, verdicts, metrics and drift.

    Open `/` in a browser: draw, drop or pick an input, and see its verdict. `/v1/predict` takes an image, a JSON array
    or an image in base64. `/v2` is the Open Inference Protocol, for clients
    of KServe, Triton and MLServer. `/metrics` is for Prometheus; `/docs` lists it all. Ctrl-C stops it, after
    everything that was accepted is answered.

    For example

    `ddu serve --demo`

    `ddu serve runs/mnist --port 8080`, then `curl -F file=@digit.png http://127.0.0.1:8080/v1/predict`

    `DDU_TOKEN=$(openssl rand -hex 16) ddu serve runs/mnist --host 0.0.0.0`

    `ddu serve my_models:make --detector detector/`
    """
    if (source is None) != demo:
        raise InputError("Name what to serve, the folder of a run for instance; or --demo, and nothing else.")
    for module in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require(module, extra="serve", purpose="ddu serve")
    from ddu.serving import Limits, bind, make_app, run_app
    from ddu.sources import open_source

    limits = Limits(batch=batch, queue=queue, rows=min(Limits.rows, queue))
    console = Console(stderr=True)
    with bind(host, port) as listener:  # before anything that takes long
        if demo:
            source, name = _make_demo(), name or "demo"
        assert source is not None
        app = make_app(open_source(source, detector=detector), name=name, token=token, limits=limits)
        if not token and not _is_loopback(host):
            console.print(f"Everybody who reaches {host} may use it: a --token restricts that.", style="yellow")
        called = app.state.predictor.name

        def say(address: str) -> None:
            console.print(
                f"Serving {called} on {address}: open it in a browser. {address}/docs is for programs.", soft_wrap=True
            )

        run_app(app, listener, on_ready=say)
    console.print("Stopped.")


def _make_demo() -> str:
    """The run of the demo in the folder `demo`, trained unless it is there."""
    from ddu.cli._layout import say_dimly
    from ddu.experiments.demo import RUN, Demo
    from ddu.provenance import command

    Demo().measure(Path("demo"), command=command(), say=lambda words: say_dimly(f"{words} ..."))
    return str(Path("demo") / RUN)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""The Dockerfile, step by step and without Docker: files, packages, user, server and health check."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from ddu.runs import RunSpec, train_run
from ddu.training import find_recipe

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True)
class Step:
    """An instruction and its words."""

    name: str
    words: str

    def array(self) -> list[str]:
        """The words of `CMD ["a", "b"]`."""
        return json.loads(self.words[self.words.index("[") :])


def steps() -> list[Step]:
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Step(*line.split(maxsplit=1)) for line in lines]


def step(name: str) -> Step:
    (found,) = [one for one in steps() if one.name == name]
    return found


def arguments() -> dict[str, str]:
    """What `ARG` sets."""
    return dict(one.words.split("=", 1) for one in steps() if one.name == "ARG")


def pip_install() -> list[str]:
    """The words of the one step that installs packages, with its arguments filled in."""
    (line,) = [one.words for one in steps() if one.name == "RUN" and one.words.startswith("pip install")]
    for name, value in arguments().items():
        line = line.replace(f"${name}", value)
    return shlex.split(line)


def copies() -> list[tuple[list[str], str]]:
    """The sources and the target of each `COPY`."""
    return [(words[:-1], words[-1]) for words in (one.words.split() for one in steps() if one.name == "COPY")]


def test_the_image_has_a_python_that_the_project_runs_on():
    version = re.fullmatch(r"python:(3\.\d+)-slim", step("FROM").words)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]


def test_what_is_copied_exists_and_is_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"  # all but what follows
    for sources, _ in copies():
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_what_is_installed_are_extras_of_the_project_at_the_pinned_versions():
    *options, target = pip_install()
    extras = re.fullmatch(r"\.\[(.+)\]", target)
    assert extras is not None
    assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()
    assert "serve" in extras[1].split(",")
    assert options[options.index("--constraint") + 1] in {source for sources, _ in copies() for source in sources}


def test_the_server_does_not_run_as_root():
    names = [one.name for one in steps()]
    assert int(step("USER").words) > 0
    assert f"--uid {step('USER').words} " in " ".join(one.words for one in steps() if one.name == "RUN")
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_service_of_kserve_asks_for_what_the_image_has():
    page = (ROOT / "docs/docker.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    (container,) = yaml.safe_load(text)["spec"]["predictor"]["containers"]
    port = container["ports"][0]["containerPort"]
    assert container["args"][container["args"].index("--port") + 1] == str(port)
    helped = subprocess.run(
        [sys.executable, "-m", "ddu", "serve", "--help"], capture_output=True, text=True, check=True
    )
    plain = re.sub(r"\x1b\[[\d;]*m", "", helped.stdout)
    for word in [*container["args"], *step("CMD").array()]:
        assert not word.startswith("--") or word in plain, word
    for probe in ("readinessProbe", "livenessProbe"):
        request = container[probe]["httpGet"]
        assert request["port"] == port
        assert f'"{request["path"]}"' in (ROOT / "src/ddu/serving/app.py").read_text()


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """The folder /app of the image and the environment of its programs: COPY and RUN done in a folder."""
    folder = tmp_path_factory.mktemp("image")
    app, venv = folder / step("WORKDIR").words.strip("/"), folder / "usr"
    app.mkdir()
    for sources, target in copies():
        for source in sources:
            where = app / target / source if target == "./" else app / target
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, where)
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    _, _, *words = pip_install()
    drop = words.index("--extra-index-url")  # this environment has its own index, and a PyTorch already at hand
    words = [word for i, word in enumerate(words) if i not in (drop, drop + 1) and word != "--no-cache-dir"]
    command = [*uv, "pip", "install", "--quiet", "--python", venv / "bin/python", *words]
    done = subprocess.run(command, cwd=app, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DDU"))}
    return app, environment | {"PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # one epoch
def test_the_command_serves_a_run_and_the_health_check_finds_it_ready(image, tmp_path):
    app, environment = image
    recipe = find_recipe("quick").with_changes(epochs=1)
    train_run(RunSpec("resnet18", "digits", recipe, options={"width": 0.0625}, false_alarm_rate=0.05), tmp_path / "run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program, *words = step("ENTRYPOINT").array()
    arguments = [str(tmp_path / "run") if word == "/model" else word for word in step("CMD").array()]
    program = shutil.which(program, path=environment["PATH"])
    assert program is not None
    python, *code = [word.replace(step("EXPOSE").words, port) for word in step("HEALTHCHECK").array()]
    python = shutil.which(python, path=environment["PATH"])
    assert python is not None
    log = tmp_path / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [program, *words, *arguments, "--port", port], cwd=app, env=environment, stderr=output
        )
    try:
        deadline = time.monotonic() + 120
        while subprocess.run([python, *code], env=environment, capture_output=True, check=False).returncode:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
    finally:
        server.terminate()
        assert server.wait(30) == 0
    healthy = subprocess.run([python, *code], env=environment, capture_output=True, check=False)
    assert healthy.returncode == 1  # no server, no health

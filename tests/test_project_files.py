"""Files for contributors, and for those who cite, agree with the project."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import ddu
from ddu.serving import Limits

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    (commands,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in commands.splitlines()]


def test_the_citation_is_of_this_version_and_of_the_paper():
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert (citation["title"], citation["version"], citation["license"]) == ("ddu", ddu.__version__, PROJECT["license"])
    assert citation["authors"] == [{"name": "The ddu contributors"}]
    paper = citation["preferred-citation"]
    assert (paper["title"], paper["year"]) == ("Deep Deterministic Uncertainty: A Simple Baseline", 2023)
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Mukhoti", "Kirsch", "van Amersfoort", "Torr", "Gal"]


def test_pre_commit_runs_what_make_check_runs():
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == recipe("check")
    assert {(hook["language"], hook["pass_filenames"]) for hook in repository["hooks"]} == {("system", False)}


def test_the_workflow_runs_everything_on_the_oldest_and_the_newest_python():
    workflow = read(".github/workflows/ci.yml")
    (job,) = workflow["jobs"].values()
    versions = [one.split(" :: ")[-1] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    versions.sort(key=lambda version: int(version.split(".")[1]))
    assert job["strategy"]["matrix"]["python"] == [versions[0], versions[-1]]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    assert "$(PYTHON)" in MAKEFILE  # the variable that the job sets
    assert "PYTHON" in job["env"]


@pytest.mark.parametrize("path", [path for path in TEMPLATES if path.stem != "config"], ids=lambda path: path.stem)
def test_a_template_for_issues_has_a_form(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    fields = form["body"]
    assert len({one["id"] for one in fields}) == len(fields) > 0
    assert all(one["attributes"]["label"] for one in fields)
    assert any(one.get("validations", {}).get("required") for one in fields)


def test_there_are_templates():
    assert {path.stem for path in TEMPLATES} == {"bug", "config", "idea"}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/index.md", "docs/concepts.md", "docs/thresholds.md"])
def test_the_targets_of_make_that_a_page_names_exist(page):
    named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", (ROOT / page).read_text(), flags=re.MULTILINE))
    assert named
    assert named <= set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, flags=re.MULTILINE))


def test_the_limits_that_the_security_policy_promises_are_those_of_the_server():
    policy = (ROOT / "SECURITY.md").read_text()
    limits = Limits()
    assert f"bodies over {limits.body // 2**20} MiB, more than {limits.rows} inputs" in policy
    assert f"images over {limits.pixels // 10**6} million pixels" in policy
    assert f"over {limits.seconds:.0f} s to arrive" in policy
    assert f"at most {limits.queue:,} inputs wait" in policy

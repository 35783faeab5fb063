"""Whatever a stranger makes of the OpenAPI description, the server does not fail."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.serving.servers import make_source, served

pytestmark = pytest.mark.filterwarnings("ignore")  # of what schemathesis makes


@pytest.mark.slow
def test_nothing_that_the_description_allows_or_forbids_makes_the_server_fail():
    with served(make_source()) as client:
        description = schemathesis.openapi.from_url(f"{client.address}/openapi.json")
        seen: Counter[tuple[str, int]] = Counter()
        for operation in (found.ok() for found in description.get_all_operations()):
            named = {"path_parameters": {"name": "tiny"}} if "{name}" in operation.path else {}
            takes_a_body = operation.method.upper() == "POST"
            for mode in GenerationMode if takes_a_body else [GenerationMode.POSITIVE]:

                @given(operation.as_strategy(mode, **named))
                @settings(
                    max_examples=40 if takes_a_body else 3,
                    deadline=None,
                    derandomize=True,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                    phases=[Phase.generate],
                )
                def attempt(case):
                    answer = case.call()
                    seen[operation.path, answer.status_code] += 1  # noqa: B023
                    assert answer.status_code < 500 or answer.status_code == 503
                    assert answer.status_code < 400 or set(answer.json()) == {"error"}

                attempt()
        statuses = {status for _, status in seen}
        assert statuses >= {200, 400, 422}
        assert sum(seen.values()) > 150
        assert client.get("/v2/health/live").status_code == 200

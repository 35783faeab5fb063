"""Is this feature space fit for density? What can be found out without any OoD data.

diagnosis = ddu.diagnose(detector, held_out, train=train)
print(diagnosis)
"""

from ddu.diagnostics.diagnose import diagnose as diagnose
from ddu.diagnostics.findings import SEVERITIES as SEVERITIES
from ddu.diagnostics.findings import Diagnosis as Diagnosis
from ddu.diagnostics.findings import Finding as Finding
from ddu.diagnostics.findings import Severity as Severity

__all__ = ["SEVERITIES", "Diagnosis", "Finding", "Severity", "diagnose"]

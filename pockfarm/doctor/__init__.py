"""Problems of an installation or a farm, and how to mend them: `pockfarm doctor`.

Each check is a function from what it looks at to findings, and changes nothing.
"""

from pockfarm.doctor.farm import farm_findings, reach
from pockfarm.doctor.finding import OK, WARNING, WRONG, Finding, findings_text, is_well
from pockfarm.doctor.installation import installation_findings

__all__ = [
    "OK",
    "WARNING",
    "WRONG",
    "Finding",
    "farm_findings",
    "findings_text",
    "installation_findings",
    "is_well",
    "reach",
]

"""Studies: networks, tasks and data that rules and attacks are compared on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from varangian.core.lazy import lazy

if TYPE_CHECKING:
    from varangian.studies.digits import digits as digits
    from varangian.studies.human_activity import human_activity as human_activity
    from varangian.studies.school import school as school
    from varangian.studies.study import Study as Study
    from varangian.studies.target_localization import target_localization as target_localization

_MEMBERS = {
    "Study": "study",
    "digits": "digits",
    "human_activity": "human_activity",
    "school": "school",
    "target_localization": "target_localization",
}

__all__ = [*_MEMBERS]
__getattr__, __dir__ = lazy(__name__, members=_MEMBERS)

"""Wrong turns of a query: what people forget or mix up, made from the right SQL.

Invariant: a function of the SQL; every slip differs from it. Some fail in the database, most answer something else.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SLIPS = (
    (r" AND [^()]*?(?= GROUP| ORDER|\)|$)", ""),
    (r" WHERE (?:(?! AND | GROUP| ORDER).)*? AND ", " WHERE "),
    (r" WHERE (?:(?! GROUP| ORDER|\)).)*", ""),
    (r"COUNT\(DISTINCT ([^)]*)\)", r"COUNT(\1)"),
    (r"\bDISTINCT ", ""),
    (r"\bSUM\(", "COUNT("),
    (r"\bAVG\(", "SUM("),
    (r"\bMAX\(", "MIN("),
    (r"\bMIN\(", "MAX("),
    (r" DESC\b", ""),
    (r" ASC\b", " DESC"),
    (r" > ", " >= "),
    (r"\bNOT EXISTS", "EXISTS"),
    (r" IS NULL", " = NULL"),
    (r" IS NOT '", " <> '"),
    (r" / \d+\.0", ""),
    (r"\bCOUNT\(\*\)", "SUM(id)"),
    (r"\bname\b", "id"),
    (r"\b([eo])\.status", "status"),
    (r"s\b(?= WHERE| JOIN|$)", ""),
)


@lru_cache(maxsize=4096)
def slips_of(sql: str) -> tuple[str, ...]:
    """Return wrong forms of a query, none twice.

    >>> slips_of("SELECT MAX(price) FROM toys")
    ('SELECT MIN(price) FROM toys', 'SELECT MAX(price) FROM toy')
    """
    made = (re.sub(pattern, new, sql, count=1) for pattern, new in _SLIPS)
    return tuple(dict.fromkeys(slip for slip in made if slip != sql))

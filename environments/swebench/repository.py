"""The repository in an agent's sandbox: what was changed in it, and the changes as a patch.

git runs in the sandbox alone, as the agent's user, on the clean copy of the repository's data that the image holds
(`preparation.BASE`, which is root's): the agent's `.git` with its hooks, filters and settings is never in force. So
what the agent staged, committed or left untracked makes no difference; what counts is what the files are, byte by
byte: attributes in the tree have no say (`preparation.ATTRIBUTES`).

Invariants: what comes back is bytes that an agent may have made up; `patch.clean_patch` decides what of it counts.
Files that the project's `.gitignore` excludes are no part of it, as in official gradings, unless the agent tracks
them: of its `.git` one file, the index, is read for their names, and only for these - as data of a repository that is
ours, a copy of limited size. An index that cannot be read so adds no names.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from agentgym_rtmc.environments.sandbox.base import ExecResult, Sandbox, WorkspacePathError
from agentgym_rtmc.environments.swebench import preparation
from agentgym_rtmc.environments.swebench.patch import is_product

MOST_FILES = 200
"""Changed files that are told of; beyond that only their number."""
MOST_TRACKED = 2000
"""Ignored files that the agent tracks; any beyond that are left out."""
SECONDS = 120.0
_INDEX_BYTES = 64 << 20
_INDEX_SECONDS = 20
_CODE = "-c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.attributesFile=/dev/null -c core.excludesFile="
_GIT = f"""
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_NO_REPLACE_OBJECTS=1
export GIT_DIR={preparation.BASE} GIT_WORK_TREE={preparation.WORKDIR} GIT_INDEX_FILE=/tmp/index LC_ALL=C
export GIT_OBJECT_DIRECTORY=/tmp/objects GIT_ALTERNATE_OBJECT_DIRECTORIES={preparation.BASE}/objects
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/nonexistent
unset BASH_ENV ENV PYTHONPATH LD_PRELOAD LD_LIBRARY_PATH
mkdir -p /tmp/objects/info /tmp/objects/pack
git() {{
  command git {_CODE} -c core.bare=false -c core.untrackedCache=false -c core.quotePath=on "$@"
}}
# The ignored files that are in the agent's index and not in ours, each ended by a NUL.
tracked() {{
  if [ ! -f .git/index ] || [ -L .git ] || [ -L .git/index ]; then return; fi
  head -c {_INDEX_BYTES} .git/index >/tmp/agent-index
  export -f git
  GIT_INDEX_FILE=/tmp/agent-index timeout {_INDEX_SECONDS} bash -c 'git ls-files -zci --exclude-standard' \\
    2>/dev/null </dev/null | sort -zu >/tmp/tracked
  git ls-tree -rz --name-only HEAD | sort -zu >/tmp/known
  comm -z23 /tmp/tracked /tmp/known | head -z -n {MOST_TRACKED} | while IFS= read -r -d '' path; do
    if [ -L "$path" ] || [ -f "$path" ]; then printf '%s\\0' "$path"; fi
  done
}}
"""
# Whoever made a folder unreadable meant nothing by it.
_CHANGES = f"""
{_GIT}
git() {{ command git {_CODE} -c core.bare=false -c core.checkStat=minimal -c core.quotePath=on "$@"; }}
cp {preparation.BASE}/index /tmp/index
cd {preparation.WORKDIR} || exit 1
git update-index -q --refresh >/dev/null 2>&1
{{ git diff-files --name-only -z; git ls-files --others --exclude-standard -z; tracked; }} 2>/dev/null |
  sort -zu >/tmp/names
tr -cd '\\0' </tmp/names | wc -c
head -z -n {MOST_FILES} /tmp/names | xargs -0 -r sh -c '
for path; do
  if [ -L "$path" ]; then digest=$(readlink -- "$path" | sha256sum)
  elif [ -f "$path" ]; then digest=$(sed "s/[[:blank:]\r]*\\$//" "./$path" 2>/dev/null | sha256sum)
  elif [ -e "$path" ]; then continue
  else digest=-; fi
  printf "%s %s\\0" "${{digest%% *}}" "$path"
done' sh
"""
_TRACKED = f"""
{_GIT}
cd {preparation.WORKDIR} || exit 1
tracked
"""
# Its standard input: ignored files that are part of it nevertheless.
_PATCH = f"""
{_GIT}
cat >/tmp/forced
cd {preparation.WORKDIR} || exit 1
find . -xdev -type d ! -perm -u+rwx -exec chmod u+rwx {{}} + 2>/dev/null
rm -f "./$1"
git read-tree HEAD || exit 1
git add -A --ignore-errors . 2>/dev/null
# One that cannot be added (below a link, say) ends the whole; then each on its own.
git update-index --add -z --stdin </tmp/forced 2>/dev/null ||
  while IFS= read -r -d '' path; do
    git update-index --add -- "$path" 2>/dev/null </dev/null
  done </tmp/forced
# A repository within the repository has no files, only a commit that nobody else has.
git diff --cached --raw --no-renames HEAD | sed -n 's/^:[0-7]* 160000 [^\t]*\t//p' |
  while IFS= read -r path; do git update-index --force-remove -- "$path"; done
git diff --cached --no-renames --no-ext-diff --no-textconv --no-color --full-index --src-prefix=a/ --dst-prefix=b/ \\
  --unified=3 --diff-algorithm=myers --submodule=short HEAD >/tmp/patch || exit 1
cat /tmp/patch >"./$1"
"""


class Repository:
    """The repository of one episode. `shell` starts a shell in which the project's environment is active."""

    shell = ("bash", "-c", f'. {preparation.ACTIVATE}; eval "$1"', "bash")

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def changes(self) -> Mapping[str, str | None] | None:
        """Path to SHA-256 of each file that differs from the start, None for a deleted one.

        Of the content without blanks at the ends of lines; of a link its target. At most MOST_FILES. A file whose size
        and time of change are as they were is taken to be unchanged. None where nothing can be told.
        """
        told = self._run(_CHANGES, "")
        if told.code or told.truncated:
            return None
        rows = told.stdout.partition("\n")[2].split("\0")
        found: dict[str, str | None] = {}
        for row in filter(None, rows):
            digest, _, path = row.partition(" ")
            found[path] = None if digest == "-" else digest
        return dict(sorted(found.items()))

    def patch(self) -> bytes | None:
        """What the agent did, as `git diff` writes it; None where the agent made that impossible (a full disk, say)."""
        name = f".patch-{secrets.token_hex(8)}"
        told = self._run(_PATCH, name, stdin=self._tracked())
        if told.code:
            return None
        try:
            return self._sandbox.read(name)
        except WorkspacePathError:
            return None
        finally:
            self._sandbox.exec(["rm", "-f", "--", f"{preparation.WORKDIR}/{name}"])

    def _tracked(self) -> bytes:
        """The ignored files that the agent tracks, without what tools leave behind, as names that end in a NUL."""
        told = self._run(_TRACKED, "")
        if told.code or told.truncated:
            return b""
        names = [name for name in told.stdout.split("\0") if name and not is_product(name)]
        return "".join(f"{name}\0" for name in names).encode("utf-8", "surrogateescape")

    def _run(self, script: str, argument: str, stdin: bytes = b"") -> ExecResult:
        return self._sandbox.exec(["/bin/bash", "-c", script, "bash", argument], timeout=SECONDS, stdin=stdin)

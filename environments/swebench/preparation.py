"""What is done to an official image, once, inside a container of it: the scripts, and what they leave where.

Invariants, of an agent's image:
- `.git` is a new repository into which the base commit's closure was copied by name: later objects, refs, tags,
  remotes, reflogs and stashes were never in it. The script ends by listing every stored object and every reachable
  one, and fails unless the lists are the same and HEAD is the only ref.
- What the image's working tree holds beyond the base commit is one commit on top, so that `git status` is clean.
- `BASE` is a repository of the files as they lie there, byte by byte, without history; root's and read by all: what
  changes are found against. Its own attributes precede every `.gitattributes` of the tree and take back what they say:
  no file counts as binary, is converted or filtered because the repository or the agent marked it so.

The repository's own hooks, filters and settings are never in force: its data is read by `pack-objects` alone.
"""

from __future__ import annotations

WORKDIR = "/testbed"
ENVIRONMENT = "/opt/miniconda3/envs/testbed"
"""The conda environment of official images."""
HOME = "/home/agent"
OURS = "/usr/lib/agentgym-rtmc"
BASE = f"{OURS}/base.git"
ACTIVATE = f"{OURS}/environment"
"""Sourced by a shell: the variables of the activated environment."""
SCRATCH = "/.preparation"
BUG = f"{SCRATCH}/bug.patch"
VERSION = "2"
"""Changes with the scripts: images that older ones made are not used."""
ATTRIBUTES = "* !diff !text !crlf !eol !filter !ident !working-tree-encoding !merge"
"""Every attribute that changes what git stores, compares or shows of a file, taken back."""

_GIT = """
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_NO_REPLACE_OBJECTS=1
export GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 LC_ALL=C PATH=/usr/local/bin:/usr/bin:/bin
export GIT_AUTHOR_NAME=image GIT_AUTHOR_EMAIL=image@localhost GIT_AUTHOR_DATE=2020-01-01T00:00:00+0000
export GIT_COMMITTER_NAME=image GIT_COMMITTER_EMAIL=image@localhost GIT_COMMITTER_DATE=2020-01-01T00:00:00+0000
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES
git() {
  command git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.untrackedCache=false -c gc.auto=0 \\
    -c maintenance.auto=false -c core.logAllRefUpdates=false -c commit.gpgSign=false -c safe.directory='*' "$@"
}
"""
_ACTIVATED = f"""
mkdir -p {OURS}
if [ -f /opt/miniconda3/bin/activate ]; then
  bash -c '. /opt/miniconda3/bin/activate && conda activate testbed && cd {WORKDIR} && export -p' >{SCRATCH}/variables
  grep -vE '^declare -x (HOME|PWD|OLDPWD|USER|LOGNAME|SHLVL|SHELL|HOSTNAME|_|LC_ALL|GIT_[A-Z_]*)(=|$)' \\
    {SCRATCH}/variables >{ACTIVATE}
else
  : >{ACTIVATE}
fi
"""
_OWNERS = f"""
mkdir -p {HOME}
printf '[safe]\\n\\tdirectory = *\\n[user]\\n\\tname = agent\\n\\temail = agent@localhost\\n' >{HOME}/.gitconfig
chown -R 65534:65534 {HOME}
# Whoever owns a folder may replace its files. Owning each file as well would copy all of them into every image.
if [ -d {ENVIRONMENT} ]; then find {ENVIRONMENT} -xdev -type d -exec chown 65534:65534 {{}} +; fi
chmod -R go-w,a+rX {OURS}
"""

AGENT_SCRIPT = f"""
set -eu
{_ACTIVATED}
{_GIT}
cd {WORKDIR}
base=$(git rev-parse --verify --quiet "$1^{{commit}}") || {{ echo "there is no commit $1 in {WORKDIR}"; exit 66; }}
new={SCRATCH}/repository
git init -q --template= "$new"
git -C "$new" symbolic-ref HEAD refs/heads/main
bug=
if [ -f {BUG} ]; then bug=1; fi
if [ -z "$bug" ]; then
  # A planted bug would show as the difference to what came before, so such a task has no history at all.
  echo "$base" | git pack-objects --revs --quiet "$new/.git/objects/pack/pack" >/dev/null
  if [ -s .git/shallow ]; then
    while read -r commit; do
      if git -C "$new" cat-file -e "$commit" 2>/dev/null; then echo "$commit"; fi
    done <.git/shallow >"$new/.git/shallow"
  fi
fi
find {WORKDIR} -xdev -name .git -prune -exec rm -rf {{}} +
mv "$new/.git" .git
if [ -n "$bug" ]; then
  git apply --whitespace=nowarn {BUG} || {{ echo "the bug's patch does not apply"; exit 67; }}
else
  git update-ref refs/heads/main "$base"
  git read-tree "$base"
fi
git add -A .
if [ -n "$bug" ] || ! git diff --cached --quiet "$base"; then
  git commit -q --no-verify -m 'The image as it is'
fi
rm -rf .git/logs .git/ORIG_HEAD .git/COMMIT_EDITMSG .git/FETCH_HEAD

git cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u >{SCRATCH}/stored
git rev-list --objects HEAD | cut -d' ' -f1 | sort -u >{SCRATCH}/reached
if ! cmp -s {SCRATCH}/stored {SCRATCH}/reached; then
  echo "objects are stored that HEAD does not reach: $(comm -23 {SCRATCH}/stored {SCRATCH}/reached | head -n 3)"
  exit 68
fi
if [ "$(git for-each-ref --format='%(refname)')" != refs/heads/main ]; then echo 'there are further refs'; exit 68; fi
if [ -z "$bug" ]; then
  later=$(git rev-list "$base..HEAD" | wc -l)
  if [ "$later" -gt 1 ]; then echo "$later commits follow the base commit"; exit 68; fi
fi

git init -q --bare --template= {BASE}
mkdir -p {BASE}/info
echo '{ATTRIBUTES}' >{BASE}/info/attributes
git rev-parse 'HEAD^{{tree}}' | git pack-objects --revs --quiet {BASE}/objects/pack/pack >/dev/null
chown -R 65534:65534 {WORKDIR}
base_git() {{ GIT_DIR={BASE} GIT_WORK_TREE={WORKDIR} git -c core.bare=false -c core.checkStat=minimal "$@"; }}
base_git read-tree "$(git rev-parse 'HEAD^{{tree}}')"
base_git add -u .
root=$(base_git commit-tree -m base "$(base_git write-tree)")
git -C {BASE} symbolic-ref HEAD refs/heads/main
git -C {BASE} update-ref refs/heads/main "$root"
{_OWNERS}
echo "objects $(wc -l <{SCRATCH}/stored) commits $(git rev-list --count HEAD) head $(git rev-parse HEAD)"
rm -rf {SCRATCH}
"""
"""Makes an agent's image of a container of an official one; `$1` is the base commit. Its last line tells what
`.git` holds."""

GRADER_SCRIPT = f"""
set -eu
mkdir -p {SCRATCH}
{_ACTIVATED}
{_OWNERS}
rm -rf {SCRATCH}
"""
"""Makes the image that gradings run in: the official one, in which the agent's user may install into the environment
(official gradings run as root). Its repository, with all history, and every other file is untouched."""

#!/bin/sh
# Makes this board a device of the farm at @FARM@ :
#
#     curl -fsS @FARM@/enrol.sh | sh
#
# asks for a one-time token (or takes it from POCKFARM_ENROL_TOKEN; never as a word of a command, which every user of
# this machine can read), checks what the agent needs, fetches the agent and compares its digest, tries out what the
# board can do, enrols it, and, as root on a machine with systemd, keeps the agent running. Nothing is changed before
# all checks have passed. Variables: POCKFARM_ENROL_TOKEN, POCKFARM_CLASS, POCKFARM_NAME, POCKFARM_RUNNER (an emulator,
# qemu-aarch64-static, that plays a board of the class), POCKFARM_STATE (folder of the device's key), POCKFARM_PROGRAM
# (folder of the agent), POCKFARM_PYTHON, POCKFARM_NO_SERVICE=1 (install no unit), POCKFARM_SYSTEMD and POCKFARM_UNITS
# (folders: there if systemd runs; where units are).
set -eu

farm='@FARM@'
digest='@DIGEST@'
draft=''
tried=''   # a state folder for the self-test only
made=''    # a state folder that was not there before
stopped='' # an agent that ran here, and whose place nothing has taken yet
systemd=${POCKFARM_SYSTEMD:-/run/systemd/system}
units=${POCKFARM_UNITS:-/etc/systemd/system}

say() { printf '%s\n' "$*" >&2; }
fail() {
    say "enrol: $1"
    [ -z "${2:-}" ] || say "  $2"
    exit 1
}
clean_up() {
    [ -z "$draft$tried" ] || rm -rf ${draft:+"$draft"} ${tried:+"$tried"}
    # A state folder stays once the board has enrolled; one that is empty was of no use, nor were those made above it.
    while [ -n "$made" ] && rmdir "$made" 2>/dev/null; do
        [ "$made" != "$top" ] || break
        made=${made%/*}
    done
    [ -z "$stopped" ] || {
        say "starting the agent that ran here before, as it was"
        systemctl start pockfarm-agent
    }
}

find_python() {
    python=${POCKFARM_PYTHON:-python3}
    python=$(command -v "$python") ||
        fail "there is no ${POCKFARM_PYTHON:-python3} here" "install it: apt-get install python3 (3.9 or newer)"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
        fail "$("$python" --version 2>&1) is too old: the agent needs Python 3.9 or newer" \
            "name a newer one: POCKFARM_PYTHON=/path/to/python3"
    "$python" -c 'from cryptography.hazmat.primitives.asymmetric import ed25519
import cryptography, sys
sys.exit(int(cryptography.__version__.split(".")[0]) < 38)' 2>/dev/null ||
        fail "$python has no cryptography, or one older than 38, which the agent needs and nothing else" \
            "install it: apt-get install python3-cryptography, or $python -m pip install 'cryptography>=38'"
}

choose_folders() {
    as_user='' # whose rights jobs have: as root each its own user, else whoever started this
    [ "$(id -u)" = 0 ] || as_user="--run-as $(id -u)"
    if [ "$(id -u)" = 0 ]; then
        state=${POCKFARM_STATE:-/var/lib/pockfarm-agent}
        program=${POCKFARM_PROGRAM:-/opt/pockfarm-agent}
    else
        state=${POCKFARM_STATE:-${HOME:?}/.pockfarm-agent}
        program=${POCKFARM_PROGRAM:-$HOME/.local/share/pockfarm-agent}
    fi
    case $state$program in
    *[!A-Za-z0-9/._-]*) fail "the folders $state and $program: only letters, digits and / . _ - may be in their names" ;;
    /*)
        [ ! -e "$state/farm.db" ] && [ ! -e "$state/api-key" ] ||
            fail "$state is the state folder of a farm" "name another for the board: POCKFARM_STATE=/a/folder"
        ;;
    *) fail "the folders $state and $program must be whole paths, from /" ;;
    esac
}

fetch_agent() {
    draft=$(mktemp -d) || fail "no temporary folder could be made" "is the disk full?"
    "$python" - "$farm/agent.pyz" "$draft/agent.pyz" "$digest" <<'PYTHON' || exit 1
import hashlib, sys, urllib.request

url, to, digest = sys.argv[1:]
try:
    data = urllib.request.urlopen(url, timeout=60).read(1 << 26)
except (OSError, ValueError) as error:
    sys.exit(f"enrol: {url} could not be fetched: {error}")
found = hashlib.sha256(data).hexdigest()
if found != digest:
    sys.exit(f"enrol: {url} has digest {found}, and should have {digest}\n"
             "  the farm may have been updated meanwhile: fetch the script again; else do not trust the way there")
with open(to, "wb") as file:
    file.write(data)
PYTHON
}

# What the agent is told; it remembers that.
choose_options() {
    options=''
    add_option --class "${POCKFARM_CLASS:-}"
    add_option --name "${POCKFARM_NAME:-}"
    add_option --runner "${POCKFARM_RUNNER:-}"
}

add_option() {
    case $2 in
    '') return ;;
    /*) [ "$1" = --runner ] || fail "$1 $2: a letter or digit has to come first" ;;
    [!A-Za-z0-9]*) fail "$1 $2: a letter or digit has to come first" ;;
    esac
    case $2 in
    *[!A-Za-z0-9\ ._:@+/-]*) fail "$1 $2: only letters, digits, spaces and . _ : @ + - may be in it" ;;
    esac
    [ ${#2} -le 100 ] || fail "$1: ${#2} characters, 100 at most"
    options="$options $1 \"$2\""
}

agent() {
    eval "\"\$python\" \"\$agent_file\" --server \"\$farm\" --state \"\$1\" $as_user $options \"\$2\""
}

ask_token() {
    [ -n "${POCKFARM_ENROL_TOKEN:-}" ] && return
    [ -f "$state/identity.json" ] && return
    (: </dev/tty) 2>/dev/null ||
        fail "there is no one-time token, and no terminal to ask for it" \
            "make one on the farm (pockfarm devices enrol NAME), then: curl -fsS $farm/enrol.sh | POCKFARM_ENROL_TOKEN=... sh"
    printf 'one-time token of the farm: ' >/dev/tty
    stty -echo </dev/tty 2>/dev/null || :
    read -r POCKFARM_ENROL_TOKEN </dev/tty || :
    stty echo </dev/tty 2>/dev/null || :
    printf '\n' >/dev/tty
    [ -n "$POCKFARM_ENROL_TOKEN" ] || fail "no token was given"
}

make_folder() {
    mkdir -p "$1" || fail "the folder $1 cannot be made" "name another: $2=/a/folder"
}

install_agent() {
    make_folder "$program" POCKFARM_PROGRAM
    if ! { cp "$draft/agent.pyz" "$program/.agent.pyz.$$" && chmod 0755 "$program/.agent.pyz.$$" &&
        mv -f "$program/.agent.pyz.$$" "$program/agent.pyz"; }; then
        fail "the agent cannot be written to $program"
    fi
    stopped='' # its file is another one now: the unit starts that
    agent_file=$program/agent.pyz
}

unit() {
    sed -e "s|@PYTHON@|$python|" -e "s|@PROGRAM@|$agent_file|" -e "s|@STATE@|$state|" <<'UNIT'
@UNIT@
UNIT
}

has_systemd() { [ "$(id -u)" = 0 ] && [ -d "$systemd" ]; }

keep_running() {
    if has_systemd && [ -z "${POCKFARM_NO_SERVICE:-}" ]; then
        unit >"$units/pockfarm-agent.service"
        if ! { systemctl daemon-reload && systemctl enable --quiet pockfarm-agent &&
            systemctl restart pockfarm-agent; }; then
            fail "systemd does not start the agent" "see: journalctl -u pockfarm-agent"
        fi
        say "the agent runs: systemctl status pockfarm-agent; its log: journalctl -u pockfarm-agent"
        return
    fi
    unit >"$program/pockfarm-agent.service"
    say "start the agent with:"
    say "  $python $agent_file --server $farm --state $state $as_user"
    say "or, as root with systemd, by the unit $program/pockfarm-agent.service"
}

stop_older() {
    has_systemd && systemctl is-active --quiet pockfarm-agent 2>/dev/null || return 0
    say "stopping the agent that runs here"
    stopped=1
    systemctl stop pockfarm-agent
}

# In a state folder of its own, on the same disk: an agent that runs here works on meanwhile.
self_test() {
    tried=$(mktemp -d "$state/self-test.XXXXXX") || fail "nothing can be written to $state" "is the disk full?"
    say "self-test of this board:"
    agent "$tried" --self-test </dev/null ||
        fail "this board is not fit for the farm yet: see PROBLEM above" "mend that, then run this again"
    rm -rf "$tried"
    tried=''
}

main() {
    [ $# = 0 ] || fail "this script takes no words: a token there could be read by every user of this machine" \
        "leave it away: it is asked for; or set POCKFARM_ENROL_TOKEN"
    trap clean_up EXIT
    trap 'exit 1' HUP INT TERM
    umask 022
    find_python
    choose_folders
    choose_options
    fetch_agent
    agent_file=$draft/agent.pyz
    [ -e "$state" ] || made=$state
    top=$state
    while [ ! -e "${top%/*}" ]; do top=${top%/*}; done
    make_folder "$state" POCKFARM_STATE
    chmod 0700 "$state"
    self_test
    ask_token
    export POCKFARM_ENROL_TOKEN
    stop_older
    agent "$state" --enrol-only </dev/null || fail "the farm did not take this board: see above"
    install_agent
    keep_running
}

# All of the script has to be here before any of it runs: a download that is cut off does nothing.
main "$@"

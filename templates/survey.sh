#!/bin/sh
# What this host offers its user, asked by clusterfn. Arguments: a mark, seconds, user, root, and folders that may hold
# files. Each question is asked beside the others and answers into a file of its own, so that one that hangs (an NFS
# server or a controller that is away) hides nothing else. What has not answered in time has no status, and is ended.
LC_ALL=C
export LC_ALL
unset CDPATH
umask 077
mark=$1 patience=$2 user=$3 root=$4
shift 4
asked=
for base in /dev/shm "${TMPDIR:-/tmp}" "$HOME"; do
    work=$(mktemp -d "$base/clusterfn-survey-XXXXXX" 2>/dev/null) && break
done
[ -d "$work" ] || exit 1
trap 'cd / && rm -rf -- "$work"' EXIT

ask() { # NAME COMMAND...
    asked="$asked $1"
    question=$1
    shift
    {
        "$@" >"$work/$question" 2>&1
        echo "$?" >"$work/$question.rc"
    } </dev/null &
}

until_answered() { # SECONDS NAME...
    end=$(($(date +%s) + $1))
    shift
    for question in "$@"; do
        while [ ! -s "$work/$question.rc" ] && [ "$(date +%s)" -lt "$end" ]; do
            sleep 0.05 2>/dev/null || sleep 1
        done
    done
}

is_there() {
    command -v "$1" >/dev/null 2>&1
}

# Sites set SCRATCH and the like for login shells. An rc file may read what is meant for its shell: the first lines are
# empty. The line after them is such as sh, csh and fish understand alike.
login() {
    {
        printf '\n\n\n\n\n\n\n\n'
        printf 'echo %s.env; env; echo %s.end\n' "$mark" "$mark"
    } | "${SHELL:-/bin/sh}" -l 2>/dev/null
}

value() { # NAME: as a login shell has it, else as it is here
    given=$(sed -n "/^$mark\.env\$/,/^$mark\.end\$/s/^$1=//p" "$work/login" | head -n 1)
    [ -n "$given" ] || given=$(printenv "$1")
    printf '%s\n' "$given"
}

partitions() {
    is_there sinfo || return 127
    sinfo --noheader '--format=%P|%a|%l|%D|%G|%m'
}

# PBS has a qstat, too, but no qconf.
grid_engine() {
    is_there qconf || return 127
    qconf -sql || return
    printf '%s.environments\n' "$mark"
    for environment in $(qconf -spl 2>/dev/null); do
        qconf -sp "$environment" | sed -n "s/^allocation_rule  */$environment /p"
    done
    printf '%s.resources\n' "$mark"
    qconf -sc
}

accounts() {
    is_there sacctmgr || return 127
    sacctmgr -nP show assoc "user=$user" format=account,partition,qos
}

gpus() {
    is_there nvidia-smi || return 127
    nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader,nounits && return
    printf '%s.again\n' "$mark"
    nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits
}

# Whether logind will end us is told by where we run; a comment in its configuration holds the default.
logind() {
    cat /proc/self/cgroup
    printf '%s.kill\n' "$mark"
    busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager \
        KillUserProcesses 2>/dev/null && return
    cat /usr/lib/systemd/logind.conf /etc/systemd/logind.conf /etc/systemd/logind.conf.d/*.conf 2>/dev/null
}

quotas() {
    is_there quota || return 127
    quota -w 2>/dev/null || quota
}

volume() { # NAME FOLDER
    printf '%s\n' "$1"
    cd -- "$2" || return 1
    printf '%s.path\n' "$mark"
    pwd -P
    printf '%s.df\n' "$mark"
    df -PkT . 2>/dev/null || df -Pk .
    printf '%s.inodes\n' "$mark"
    df -Pi .
    printf '%s.mode\n' "$mark"
    # shellcheck disable=SC2012  # its first word is all that is wanted
    ls -ld . | cut -d ' ' -f 1
    try_writing
    is_there lfs && lustre_quotas
    return 0
}

# In a folder of its own with a name that nobody can guess. Where others may write they can still put a link in its
# place, so the file is written only where the shell already is, and only if it is new.
try_writing() {
    printf '%s.write\n' "$mark"
    if inside=$(mktemp -d ./.clusterfn-survey-XXXXXXXX 2>&1); then
        (write_inside)
        rmdir -- "$inside" 2>/dev/null
    else
        printf '%s\n' "$inside"
    fi
}

write_inside() {
    set -C
    if ! cd -P -- "$inside" || [ ! -O . ] || [ -n "$(ls -A)" ]; then
        echo "another user has replaced $inside"
    elif { printf '#!/bin/sh\nexit 0\n' | cat >try; } 2>&1; then
        chmod 700 try
        printf '%s.run\n' "$mark"
        ./try && echo yes
        printf '%s.link\n' "$mark"
        ln -- try try-b && echo yes
        rm -f -- try try-b
    else
        rm -f -- try
    fi
}

lustre_quotas() {
    [ "$(stat -f -c %T . 2>/dev/null)" = lustre ] || return
    printf '%s.lfs\n' "$mark"
    lfs quota -q -u "$user" .
    lfs quota -q -g "$(id -gn)" .
    project=$(lfs project -d . 2>/dev/null | awk '{ print $1 }')
    [ "${project:-0}" -eq 0 ] || lfs quota -q -p "$project" .
}

folder() { # CANDIDATE: its path, if it names one
    case $1 in
        '$'*) value "${1#?}" ;;
        *) printf '%s\n' "$1" ;;
    esac
}

network_mounts() {
    [ -r /proc/mounts ] || return
    awk -v user="$user" '$3 ~ /^(lustre|gpfs|beegfs|ceph|wekafs|panfs)$/ { print $2 "/" user }' /proc/mounts | head -n 10
}

ask login login
ask partitions partitions
ask grid_engine grid_engine
ask accounts accounts
ask gpus gpus
ask logind logind
ask quotas quotas
until_answered "$patience" login
ask root volume "$root" "$root"
number=0
for candidate in "$@" $(network_mounts); do
    candidate=$(printf '%s\n' "$candidate" | sed "s/%u/$user/g")
    at=$(folder "$candidate")
    case $at in
        /*)
            number=$((number + 1))
            ask "volume-$number" volume "$candidate" "$at"
            ;;
    esac
done
# shellcheck disable=SC2086  # names without blanks
until_answered "$patience" $asked
for question in $asked; do
    printf '%s %s %s\n' "$mark" "$question" "$(cat "$work/$question.rc" 2>/dev/null)"
    cat "$work/$question"
    echo
done
trap '' TERM # what has not answered is in our process group, and nothing else is
kill -TERM 0

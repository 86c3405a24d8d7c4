#!/bin/sh
# Written by clusterfn for job 7f3a000011112222. sbatch runs it, or the agent where there is no scheduler.
# It starts the supervisor; whatever else happens, `ended` lets `supervise.py after` say what can be known.
trap : TERM INT USR1
umask 077
unset SLURM_EXPORT_ENV SLURM_GET_USER_ENV
# Until the supervisor claims the job, this is all that tells whether somebody is at it.
{
    read -r clusterfn_boot </proc/sys/kernel/random/boot_id && read -r clusterfn_self <"/proc/$$/stat" &&
        printf '%s %s\n' "$clusterfn_boot" "$clusterfn_self" >/home/ada/.clusterfn/jobs/7f3a000011112222/started
} 2>/dev/null
clusterfn_stage=setup
# shellcheck disable=SC2317  # called by the trap
ended() {
    clusterfn_status=$?
    trap - EXIT
    case $clusterfn_stage:$clusterfn_status in
        supervisor:0 | supervisor:10 | supervisor:20) exit "$clusterfn_status" ;;
        supervisor:*) set -- "$clusterfn_status" ;;
        module:*) set -- "$clusterfn_stage" ;;
        *) set -- "$clusterfn_stage:$clusterfn_status:${clusterfn_line-}" ;;
    esac
    while :; do
        clusterfn_after=0
        /usr/bin/python3 -I -S /home/ada/.clusterfn/bridge/abc123/supervise.py after /home/ada/.clusterfn/jobs/7f3a000011112222 "$1" || clusterfn_after=$?
        [ "$clusterfn_after" = 12 ] || break
        clusterfn_status=0
        /usr/bin/python3 -I -S /home/ada/.clusterfn/bridge/abc123/supervise.py run /home/ada/.clusterfn/jobs/7f3a000011112222 "$1" || clusterfn_status=$?
        case $clusterfn_status in
            0 | 10 | 20) exit "$clusterfn_status" ;;
        esac
        set -- "$clusterfn_status"
    done
    [ "$clusterfn_status" -ne 0 ] || clusterfn_status=1
    exit "$clusterfn_status"
}
trap ended EXIT
# A supervisor that was forked from a template has ended so, and this process has waited for it.
if [ -n "${CLUSTERFN_SUPERVISOR_STATUS-}" ]; then
    clusterfn_stage=supervisor clusterfn_status=$CLUSTERFN_SUPERVISOR_STATUS
    unset CLUSTERFN_SUPERVISOR_STATUS
    exit "$clusterfn_status"
fi
clusterfn_libraries=${LD_LIBRARY_PATH-}
clusterfn_modules=${PYTHONPATH-}
# Runs the host's own lines one complete command at a time, and ends the script at the first that fails.
clusterfn_line=
# Whether the lines given so far are a complete command; `if` and here-documents take several of them.
clusterfn_whole() {
    clusterfn_line="$clusterfn_line$1
"
    (eval "if false; then :
$clusterfn_line
fi") >/dev/null 2>&1
}
# shellcheck disable=SC2317  # called after each line
clusterfn_ran() {
    case $1:$clusterfn_line in
        0:*) clusterfn_line= && return ;;
        # `[ -f x ] && . x`: a condition that does not hold is no failure.
        1:[[]*'&&'* | 1:test\ *'&&'* | 1:command\ -v*'&&'*) clusterfn_line= && return ;;
        *activate*) echo "clusterfn: activate no environment in a job: set environment: conda:NAME or venv:PATH" >&2 ;;
        127:*source*) echo "clusterfn: sh has no command source: write . FILE" >&2 ;;
    esac
    exit "$1"
}
! clusterfn_whole 'export SCRATCH=/scratch/ada' || { eval "$clusterfn_line"; clusterfn_ran "$?"; }
! clusterfn_whole 'umask 027' || { eval "$clusterfn_line"; clusterfn_ran "$?"; }
[ -z "$clusterfn_line" ] || { eval "$clusterfn_line"; clusterfn_ran "$?"; }
# Environment modules: a batch shell may lack the function `module`, and old versions return 0 after an error.
find_module() {
    for init in "${MODULESHOME:-/usr/share/modules}/init/sh" "${LMOD_PKG:-/usr/share/lmod/lmod}/init/sh" \
        /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh \
        /usr/share/Modules/init/sh /usr/share/modules/init/sh /opt/ohpc/admin/lmod/lmod/init/sh; do
        command -v module >/dev/null 2>&1 && return 0
        # shellcheck disable=SC1090
        if [ -r "$init" ]; then . "$init"; fi
    done
    command -v module >/dev/null 2>&1
}
load_module() {
    clusterfn_stage=module:$1
    find_module || no_module "$1" "this machine has no environment modules"
    module load "$1" 2>/home/ada/.clusterfn/jobs/7f3a000011112222/module.err || no_module "$1" "it could not be loaded on $(uname -n)"
    case $(cat /home/ada/.clusterfn/jobs/7f3a000011112222/module.err) in
        *:ERROR:* | *"Unable to locate a modulefile"*) no_module "$1" "it could not be loaded on $(uname -n)" ;;
    esac
    cat /home/ada/.clusterfn/jobs/7f3a000011112222/module.err >&2
    # shellcheck disable=SC2034  # job.sh reads it
    clusterfn_stage=setup
}
no_module() {
    cat /home/ada/.clusterfn/jobs/7f3a000011112222/module.err >&2 2>/dev/null
    echo "clusterfn: module $1: $2" >&2
    exit 1
}
load_module gcc/12
load_module cuda/12.4
load_module openmpi
clusterfn_stage=prolog
! clusterfn_whole 'nvidia-smi -L || true' || { eval "$clusterfn_line"; clusterfn_ran "$?"; }
[ -z "$clusterfn_line" ] || { eval "$clusterfn_line"; clusterfn_ran "$?"; }
# What these lines set was meant for the function; what was there before was not.
CLUSTERFN_KEEP=
[ "${LD_LIBRARY_PATH-}" = "$clusterfn_libraries" ] || CLUSTERFN_KEEP=LD_LIBRARY_PATH
[ "${PYTHONPATH-}" = "$clusterfn_modules" ] || CLUSTERFN_KEEP="$CLUSTERFN_KEEP PYTHONPATH"
export CLUSTERFN_KEEP
clusterfn_stage=supervisor
/usr/bin/python3 -I -S /home/ada/.clusterfn/bridge/abc123/supervise.py run /home/ada/.clusterfn/jobs/7f3a000011112222
exit "$?"

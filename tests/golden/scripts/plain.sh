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

# What these lines set was meant for the function; what was there before was not.
CLUSTERFN_KEEP=
[ "${LD_LIBRARY_PATH-}" = "$clusterfn_libraries" ] || CLUSTERFN_KEEP=LD_LIBRARY_PATH
[ "${PYTHONPATH-}" = "$clusterfn_modules" ] || CLUSTERFN_KEEP="$CLUSTERFN_KEEP PYTHONPATH"
export CLUSTERFN_KEEP
clusterfn_stage=supervisor
/usr/bin/python3 -I -S /home/ada/.clusterfn/bridge/abc123/supervise.py run /home/ada/.clusterfn/jobs/7f3a000011112222
exit "$?"

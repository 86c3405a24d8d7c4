#!/bin/sh
# Written by clusterfn for job @@id. sbatch runs it, or the agent where there is no scheduler.
# It starts the supervisor; whatever else happens, `ended` lets `supervise.py after` say what can be known.
trap : TERM INT USR1
umask 077@@element
unset SLURM_EXPORT_ENV SLURM_GET_USER_ENV
# Until the supervisor claims the job, this is all that tells whether somebody is at it.
{
    read -r clusterfn_boot </proc/sys/kernel/random/boot_id && read -r clusterfn_self <"/proc/$$/stat" &&
        printf '%s %s\n' "$clusterfn_boot" "$clusterfn_self" >@@job/@@started
} 2>/dev/null
clusterfn_stage=setup
# shellcheck disable=SC2317  # called by the trap
ended() {
    clusterfn_status=$?
    trap - EXIT
    case $clusterfn_stage:$clusterfn_status in
        supervisor:@@returned | supervisor:@@published | supervisor:@@queued) exit "$clusterfn_status" ;;
        supervisor:*) set -- "$clusterfn_status" ;;
        module:*) set -- "$clusterfn_stage" ;;
        *) set -- "$clusterfn_stage:$clusterfn_status:${clusterfn_line-}" ;;
    esac
    while :; do
        clusterfn_after=0
        @@python -I -S @@supervise after @@job "$1" || clusterfn_after=$?
        [ "$clusterfn_after" = @@again ] || break
        clusterfn_status=0
        @@python -I -S @@supervise run @@job "$1" || clusterfn_status=$?
        case $clusterfn_status in
            @@returned | @@published | @@queued) exit "$clusterfn_status" ;;
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
clusterfn_modules=${PYTHONPATH-}@@path
@@lines
# What these lines set was meant for the function; what was there before was not.
CLUSTERFN_KEEP=
[ "${LD_LIBRARY_PATH-}" = "$clusterfn_libraries" ] || CLUSTERFN_KEEP=LD_LIBRARY_PATH
[ "${PYTHONPATH-}" = "$clusterfn_modules" ] || CLUSTERFN_KEEP="$CLUSTERFN_KEEP PYTHONPATH"
export CLUSTERFN_KEEP
clusterfn_stage=supervisor
@@python -I -S @@supervise run @@job
exit "$?"

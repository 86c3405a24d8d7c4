#!/bin/sh
# Written by clusterfn for job @@id. sbatch runs it, or the agent where there is no scheduler.
# It starts the supervisor; whatever else happens, `ended` lets `supervise.py after` say what can be known.
trap : TERM INT USR1
umask 077
unset SLURM_EXPORT_ENV SLURM_GET_USER_ENV
clusterfn_stage=setup
# shellcheck disable=SC2317  # called by the trap
ended() {
    clusterfn_status=$?
    trap - EXIT
    case $clusterfn_stage:$clusterfn_status in
        supervisor:@@returned | supervisor:@@published) exit "$clusterfn_status" ;;
        supervisor:*) set -- "$clusterfn_status" ;;
        module:*) set -- "$clusterfn_stage" ;;
        *) set -- "setup:$clusterfn_status" ;;
    esac
    @@python @@supervise after @@job "$1"
    [ "$clusterfn_status" -ne 0 ] || clusterfn_status=1
    exit "$clusterfn_status"
}
trap ended EXIT
@@lines
clusterfn_stage=supervisor
@@python @@supervise run @@job
exit "$?"

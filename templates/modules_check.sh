#!/bin/sh
# Written by clusterfn: loads a host's modules as its jobs do, says at which stage that ended, and what is there instead.
clusterfn_stage=setup
clusterfn_said=$(mktemp) || exit 1
# shellcheck disable=SC2317  # called by the trap
ended() {
    clusterfn_status=$?
    trap - EXIT
    case $clusterfn_stage in
        setup | prolog) printf '\n@@mark %s %s\n%s\n' "$clusterfn_status" "$clusterfn_stage" "${clusterfn_line-}" ;;
        *) printf '\n@@mark %s %s\n' "$clusterfn_status" "$clusterfn_stage" ;;
    esac
    case $clusterfn_stage in
        module:*)
            clusterfn_name=${clusterfn_stage#module:}
            command -v module >/dev/null 2>&1 && module -t avail "${clusterfn_name%%/*}" 2>&1
            ;;
    esac
    rm -f -- "$clusterfn_said"
}
trap ended EXIT
@@lines
# shellcheck disable=SC2034  # the trap reads it
clusterfn_stage=loaded

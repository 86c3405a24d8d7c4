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

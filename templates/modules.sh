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
    module load "$1" 2>@@said || no_module "$1" "it could not be loaded on $(uname -n)"
    case $(cat @@said) in
        *:ERROR:* | *"Unable to locate a modulefile"*) no_module "$1" "it could not be loaded on $(uname -n)" ;;
    esac
    cat @@said >&2
    # shellcheck disable=SC2034  # job.sh reads it
    clusterfn_stage=setup
}
no_module() {
    cat @@said >&2 2>/dev/null
    echo "clusterfn: module $1: $2" >&2
    exit 1
}

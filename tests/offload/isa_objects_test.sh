#!/bin/sh
# isa_objects_test.sh OBJECT...: a file compiled for newer instructions must define nothing that the
# linker could choose for the whole program (an inline function of a library, say): on an older CPU
# that copy would be an illegal instruction.
checked=0
failed=0
for object in "$@"; do
  case "$object" in *_avx*) ;; *) continue ;; esac
  checked=$((checked + 1))
  shared=$(nm -C --defined-only "$object" | grep ' [WVui] ')
  if [ -n "$shared" ]; then
    printf '%s defines symbols that others may share:\n%s\n' "$object" "$shared"
    failed=1
  fi
done
[ "$checked" -gt 0 ] || { echo "no object to look at"; exit 1; }
echo "$checked objects looked at"
exit "$failed"

#!/bin/sh
# adam_bench_test.sh ADAM_BENCH: wrong options end with code 2 and a sentence that names the option;
# right ones measure, and what they leave behind is a whole result or somebody's file untouched.
bench=$1
failed=0
refused() {  # NAME ARGUMENT...: the message must contain NAME
  name=$1
  shift
  message=$("$bench" "$@" 2>&1 >/dev/null)
  code=$?
  case "$code:$message" in
    2:*"$name"*) ;;
    *) echo "adam_bench $*: code $code, \"$message\""; failed=1 ;;
  esac
}
refused --elements --elements 0
refused --elements --elements -5
refused --elements --elements many
refused --grad --grad fp8
refused --master --master bf16
refused --copy-out --copy-out fp32
refused --copy-out --copy-out bf16
refused --copy-out --master split --copy-out fp16
refused --moments --moments fp16
refused --moments --cast bf16 --moments bf16
refused --threads --threads 0
refused --threads --threads 1.5
refused --isa --isa sse
refused --seconds --seconds nan
refused --seconds --seconds 0
refused --runs --runs 0
refused --json --json ""
refused --json --json /no/such/folder/file
refused --bogus --bogus
refused --cast --cast fp32
refused --grad --cast bf16 --grad bf16
refused --copy-out --cast bf16 --copy-out none
refused --stagger --stagger -1

short="--elements 1003 --threads 2 --seconds 0.001 --runs 2"
has() {  # TEXT KEY...
  text=$1
  shift
  for key in "$@"; do
    case "$text" in *"$key"*) ;; *) echo "no $key in: $text"; failed=1 ;; esac
  done
}
json=$("$bench" $short --grad fp16 --copy-out fp16 --isa scalar --stagger 3 --json - 2>/dev/null) ||
  { echo "a measurement failed"; failed=1; }
has "$json" '"bytes_per_param": 28' '"isa": "scalar"' '"master": "fp32+fp16"' '"adam_over_copy"' \
  '"version"' '"machine"' '"cores"' '"stagger_lines": 3' '"command": "adam_bench --elements 1003'
json=$("$bench" $short --grad bf16 --master split --moments bf16 --json - 2>/dev/null) ||
  { echo "--moments bf16 failed"; failed=1; }
has "$json" '"bytes_per_param": 18' '"moments": "bf16"'
for cast in bf16 fp16; do
  json=$("$bench" $short --cast $cast --json - 2>/dev/null) || { echo "--cast failed"; failed=1; }
  has "$json" "\"cast\": \"$cast\"" '"bytes_per_element": 6' '"cast_over_halve"' '"cast_over_copy"'
done
json=$("$bench" $short --cast none --json - 2>/dev/null) || { echo "--cast none failed"; failed=1; }
has "$json" '"bytes_per_element": 4' '"cast_over_read"'

folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
echo precious >"$folder/mine"
refused "not an earlier result" $short --json "$folder/mine"
has "$(cat "$folder/mine")" precious
for said in "" "adam_bench: --json $folder/result: the earlier result there will be replaced"; do
  "$bench" $short --json "$folder/result" >"$folder/out" 2>"$folder/err" ||
    { echo "--json failed"; failed=1; }
  # No progress line where there is no terminal.
  [ "$(cat "$folder/err")" = "$said" ] || { echo "said: $(cat "$folder/err")"; failed=1; }
done
has "$(cat "$folder/result")" '"adam_gparams_per_s"'
has "$(head -1 "$folder/out")" "adam_bench " " on "
[ "$(ls "$folder" | wc -l)" -eq 4 ] || { echo "files were left behind"; failed=1; }
if command -v script >/dev/null; then
  shown=$(script -qec "$bench --elements 1003 --seconds 0.15 --runs 1" /dev/null)
  has "$shown" "AdamW, run 1 of 1" left
fi
exit "$failed"

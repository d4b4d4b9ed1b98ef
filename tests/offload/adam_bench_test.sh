#!/bin/sh
# adam_bench_test.sh ADAM_BENCH: wrong options end with code 2 and a sentence that names the option;
# right ones measure.
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
refused --copy-out --master split --copy-out bf16
refused --threads --threads 0
refused --threads --threads 1.5
refused --isa --isa sse
refused --seconds --seconds nan
refused --seconds --seconds 0
refused --runs --runs 0
refused --json --json ""
refused --json --json /no/such/folder/file
refused --bogus --bogus

json=$("$bench" --elements 1003 --grad fp16 --copy-out fp16 --threads 2 --isa scalar \
  --seconds 0.001 --runs 2 --json - 2>/dev/null) || { echo "a measurement failed"; failed=1; }
for key in '"bytes_per_param": 28' '"isa": "scalar"' '"master": "fp32+fp16"' '"adam_over_copy"'; do
  case "$json" in *"$key"*) ;; *) echo "no $key in the JSON"; failed=1 ;; esac
done
exit "$failed"

. .kit/use.sh; ulimit -l unlimited
cat /tmp/res/a.log | tail -n 3
python3 - <<'P'
import random,array
r=random.Random(1)
array.array('I',[r.randrange(120000) for _ in range(2000000)]).tofile(open('/tmp/t.bin','wb'))
P
sed -i 's#"data": {"train": \["t.bin"\]#"data": {"dtype": "uint32", "train": ["/tmp/t.bin"]#; s#"steps": 4#"steps": 1, "checkpoint_at_end": false#' /tmp/long.json
cat > /tmp/jb.sh <<'J'
export XDG_CACHE_HOME=/tmp/cb CUDA_VISIBLE_DEVICES=0; cd /tmp
date; taskset -c 0-15 /tmp/b/sluice train /tmp/long.json --out /tmp/ob --set data.sequence_length=500000 --set model.context=500000 --set optimizer.params.moments=bf16 --set budget.gpu_gib=76 --set budget.cpu_gib=125 --set 'budget.nvme_paths=["/tmp/nvb"]'; echo rc $?; date
J
cat > /tmp/ja.sh <<'J'
export XDG_CACHE_HOME=/tmp/ca CUDA_VISIBLE_DEVICES=1; cd /tmp; sleep 30
date; taskset -c 16-31 /tmp/b/sluice train /tmp/long.json --out /tmp/oa --set data.sequence_length=230400 --set model.context=230400 --set 'budget.nvme_paths=["/tmp/nva"]'; echo rc $?; date
J
setsid nohup bash /tmp/jb.sh > /tmp/res/b2.log 2>&1 &
setsid nohup bash /tmp/ja.sh > /tmp/res/a2.log 2>&1 &
sleep ${1:-60}; for f in a2 b2; do echo == $f; tail -n 25 /tmp/res/$f.log; done; free -g | sed -n 2p; nvidia-smi --query-gpu=memory.used --format=csv
for f in mt rt; do tail -n 4 /tmp/res/$f.log | cut -c1-150; done

. .kit/use.sh; ulimit -l unlimited
mkdir -p /tmp/b /tmp/res /tmp/nva /tmp/nvb; tar -C /tmp/b -xJf .kit/bins.tar.xz; nvidia-smi -L; free -g | sed -n 2p; nproc; df -h /tmp | tail -1
R=$PWD
cat > /tmp/long.json <<'J'
{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
 "zero_optimization": {"stage": 3, "offload_param": {"device": "auto"}, "offload_optimizer": {"device": "auto"}},
 "model": {"preset": "llama3.1-8b"}, "data": {"train": ["t.bin"], "sequence_length": 32768},
 "run": {"steps": 4}, "budget": {"gpu_gib": 24, "cpu_gib": 110}}
J
cat > /tmp/jb.sh <<'J'
export XDG_CACHE_HOME=/tmp/cb CUDA_VISIBLE_DEVICES=0; cd /tmp
date; taskset -c 0-15 /tmp/b/step_bench /tmp/long.json --set data.sequence_length=500000 --set model.context=500000 --set optimizer.params.moments=bf16 --set budget.gpu_gib=76 --set budget.cpu_gib=125 --set 'budget.nvme_paths=["/tmp/nvb"]' --steps 1 --warmup 0; echo rc $?; date
J
cat > /tmp/ja.sh <<J
export XDG_CACHE_HOME=/tmp/ca CUDA_VISIBLE_DEVICES=1; cd /tmp; sleep 45
date; taskset -c 16-31 /tmp/b/step_bench /tmp/long.json --set data.sequence_length=230400 --set model.context=230400 --set 'budget.nvme_paths=["/tmp/nva"]' --steps 1 --warmup 0; echo rc \$?; date
cd $R
(cd /tmp/b && timeout 240 ./model_test --gtest_filter='*Cuda*' > /tmp/res/mt.log 2>&1; echo rc \$? >> /tmp/res/mt.log) 
(cd /tmp/b && timeout 100 ./run_test --gtest_filter='*Cuda*' > /tmp/res/rt.log 2>&1; echo rc \$? >> /tmp/res/rt.log)
export SLUICE=/tmp/b/sluice SLUICE_HAS_ENGINE=1 SLUICE_TEST_DEVICE=cuda PYTHONPATH=/tmp/b/python:tests/python:tests:tools
for t in gradients_test native_test native_engine_test; do timeout 150 taskset -c 16-31 python3 tests/python/\$t.py > /tmp/res/py_\$t.log 2>&1; echo rc \$? >> /tmp/res/py_\$t.log; done; echo done > /tmp/res/done
J
setsid nohup bash /tmp/jb.sh > /tmp/res/b.log 2>&1 &
setsid nohup bash /tmp/ja.sh > /tmp/res/a.log 2>&1 &
sleep 100; tail -5 /tmp/res/a.log /tmp/res/b.log; free -g | sed -n 2p; nvidia-smi --query-gpu=memory.used --format=csv

{{- /* The image of workers. */}}
{{- define "tandem.workerImage" -}}
{{- include "tandem.image" (list . (include "tandem.engineImage" . | fromYaml)) }}
{{- end }}

{{- define "tandem.workerPullPolicy" -}}
{{- get (include "tandem.engineImage" . | fromYaml) "pullPolicy" }}
{{- end }}

{{- define "tandem.engineImage" -}}
{{- get (dict "sglang" .Values.engine.image "vllm" .Values.engine.vllmImage "sim" .Values.image) (include "tandem.engine" .) | toYaml }}
{{- end }}

{{- /* Whether workers hold accelerators; empty: no. */}}
{{- define "tandem.onGpu" -}}
{{- if and (ne (include "tandem.engine" .) "sim") (eq .Values.engine.device "cuda") }}yes{{ end }}
{{- end }}

{{- /* Accelerators of a worker, on all its nodes: (list $ "prefill"). */}}
{{- define "tandem.accelerators" -}}
{{- $engine := (index . 0).Values.engine -}}
{{- if eq (index . 1) "decode" }}
{{- mul (default $engine.tensorParallel $engine.decodeTensorParallel) (default $engine.pipelineParallel $engine.decodePipelineParallel) }}
{{- else }}
{{- mul $engine.tensorParallel $engine.pipelineParallel }}
{{- end }}
{{- end }}

{{- /* kvTransfer.rdma for a component: (list $ "prefill"). No KV moves but between the two phases. */}}
{{- define "tandem.rdma" -}}
{{- ternary (index . 0).Values.kvTransfer.rdma (dict "enabled" false) (has (index . 1) (list "prefill" "decode")) | toYaml }}
{{- end }}

{{- /* Whether a component's worker is a group of pods on several nodes: (list $ "prefill"); empty: no. */}}
{{- define "tandem.spread" -}}
{{- if gt (index (index . 0).Values (index . 1) | dig "workload" "nodes" 1 | int) 1 }}yes{{ end }}
{{- end }}

{{- /* The numbers of a decode worker's token processes from the second on, each with a port of its own. */}}
{{- define "tandem.furtherTokenProcesses" -}}
{{- untilStep 2 (int (add1 .Values.decode.tokenProcesses)) 1 | toJson }}
{{- end }}

{{- /* What selects the pods of a phase that serve: of a group, its leader. */}}
{{- define "tandem.servingLabels" -}}
{{- include "tandem.selectorLabels" . }}
{{- if include "tandem.spread" . }}
leaderworkerset.sigs.k8s.io/worker-index: "0"
{{- end }}
{{- end }}

{{- /* The object that makes a component's pods, as a scaler names it: (list $ "prefill"). */}}
{{- define "tandem.workloadRef" -}}
{{- if include "tandem.spread" . -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end }}
name: {{ include "tandem.component" . }}
{{- end }}

{{- /* The kinds of workers that the release has, as JSON. */}}
{{- define "tandem.workers" -}}
{{- ternary (list "prefill" "decode" "worker") (list "prefill" "decode") .Values.worker.enabled | toJson }}
{{- end }}

{{- /* Environment of a worker beside what tells it who it is: (list $ "prefill"). */}}
{{- define "tandem.workerEnv" -}}
{{- $root := index . 0 }}
{{- $transfer := $root.Values.kvTransfer }}
{{- $byMooncake := eq $transfer.backend "mooncake" }}
{{- $provider := $transfer.libfabric.provider }}
{{- $byUcx := not (or $byMooncake $provider) }}
{{- $tls := default (ternary "^tcp" "" (and $transfer.requireRdma $byUcx)) $transfer.ucx.tls -}}
{{- with include "tandem.codePath" $root }}
- {name: PYTHONPATH, value: {{ . | quote }}}
{{- end }}
{{- with $tls }}
- {name: UCX_TLS, value: {{ . | quote }}}
{{- end }}
{{- if and $transfer.requireRdma $byMooncake }}
- {name: MC_FORCE_HCA, value: "1"}
{{- end }}
{{- with $provider }}
- {name: SGLANG_DISAGGREGATION_NIXL_BACKEND, value: LIBFABRIC}
- {name: FI_PROVIDER, value: {{ . | quote }}}
{{- if eq . "efa" }}
- {name: FI_EFA_USE_DEVICE_RDMA, value: "1"}
{{- end }}
{{- end }}
{{- with $transfer.ucx.netDevices }}
- {name: UCX_NET_DEVICES, value: {{ . | quote }}}
{{- end }}
{{- if ne (toString $transfer.ucx.ibGidIndex) "" }}
- {name: UCX_IB_GID_INDEX, value: {{ toString $transfer.ucx.ibGidIndex | quote }}}
{{- end }}
{{ include "tandem.env" . }}
{{- end }}

{{- /* What a worker asks for where the values do not say it: (list $ "prefill"). With accelerators: a CPU for each
rank's scheduler and three for the processes around them; and memory for the processes, and for a fifth of the KV
cache, which decode pins in the host: on 80 GB no more than 16Gi. It may pin more, of what the chart does not know: larger
GPUs, and a model's longest sequence. Each further token process takes a CPU and 2Gi. */}}
{{- define "tandem.workerRequests" -}}
{{- $root := index . 0 }}
{{- if include "tandem.onGpu" $root }}
{{- $ranks := div (include "tandem.accelerators" .) (index $root.Values (index . 1) | dig "workload" "nodes" 1) }}
{{- $further := sub (index $root.Values (index . 1) | dig "tokenProcesses" 1) 1 -}}
{cpu: {{ add 3 $ranks $further }}, memory: {{ add 8 (mul 16 $ranks) (mul 2 $further) }}Gi}
{{- else -}}
{cpu: 200m, memory: 512Mi}
{{- end }}
{{- end }}

{{- /* Resources of a worker: the values', and what its devices and huge pages ask for. Where they limit something, that
is its request unless they say another. Only the memory of a simulated one is known here. */}}
{{- define "tandem.workerResources" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) }}
{{- $rdma := include "tandem.rdma" . | fromYaml }}
{{- $devices := dict }}
{{- if and (include "tandem.onGpu" $root) $values.accelerator.resourceName (not $values.accelerator.claims) }}
{{- $_ := set $devices $values.accelerator.resourceName (div (include "tandem.accelerators" .) (dig "workload" "nodes" 1 $values)) }}
{{- end }}
{{- if and $rdma.enabled $rdma.resourceName }}
{{- $_ := set $devices $rdma.resourceName $rdma.count }}
{{- end }}
{{- if dig "hugepages" "size" "" $values }}
{{- $_ := set $devices (printf "hugepages-%s" $values.hugepages.pageSize) $values.hugepages.size }}
{{- end }}
{{- $own := dict }}
{{- if $devices }}{{ $own = dict "limits" $devices "requests" $devices }}{{ end }}
{{- with $values.accelerator.claims }}
{{- $names := list }}
{{- range . }}{{ $names = append $names (dict "name" .name) }}{{ end }}
{{- $_ := set $own "claims" $names }}
{{- end }}
{{- $asked := include "tandem.workerRequests" . | fromYaml }}
{{- range $name, $_ := (default dict $values.resources).limits }}{{ $asked = omit $asked $name }}{{ end }}
{{- $resources := merge (deepCopy $own) (default dict $values.resources) (dict "requests" $asked) }}
{{- if eq (include "tandem.engine" $root) "sim" }}
{{- $resources = merge $resources (dict "limits" (dict "memory" "2Gi")) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- define "tandem.workerSecurityContext" -}}
{{- $root := index . 0 }}
{{- $rdma := include "tandem.rdma" . | fromYaml }}
{{- $given := deepCopy (index $root.Values (index . 1)).securityContext }}
{{- if and $rdma.enabled $rdma.ipcLock }}
{{- $given = mergeOverwrite (dict "capabilities" (dict "drop" (list "ALL") "add" (list "IPC_LOCK"))) $given }}
{{- end }}
{{- include "tandem.securityContext" $given }}
{{- end }}

{{- /* Mounts of a worker: (list $ "prefill"); below, the volumes. */}}
{{- define "tandem.workerMounts" -}}
{{- $root := index . 0 -}}
{{ include "tandem.volumeMounts" . }}
- {name: shm, mountPath: /dev/shm}
{{- if include "tandem.compileCacheClaim" . }}
- {name: compile-cache, mountPath: /tmp/cache}
{{- end }}
{{- if index $root.Values (index . 1) | dig "hugepages" "size" "" }}
- {name: hugepages, mountPath: /dev/hugepages}
{{- end }}
{{- if include "tandem.fetchesLora" $root }}
- {name: lora-adapters, mountPath: /lora-adapters, readOnly: true}
{{- end }}
{{- include "tandem.modelMount" $root }}
{{- include "tandem.codeMounts" $root }}
{{- end }}

{{- define "tandem.workerVolumes" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) -}}
{{ include "tandem.volumes" . }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ $values.shm.sizeLimit }}}
{{- with include "tandem.compileCacheClaim" . }}
- name: compile-cache
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- if dig "hugepages" "size" "" $values }}
- name: hugepages
  emptyDir: {medium: HugePages-{{ $values.hugepages.pageSize }}}
{{- end }}
{{- if include "tandem.fetchesLora" $root }}
- name: lora-adapters
  emptyDir: {}
{{- if not (include "tandem.downloads" $root) }}
{{- with $root.Values.model.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}
{{- include "tandem.modelVolume" $root }}
{{- include "tandem.codeVolumes" $root }}
{{- end }}

{{- /* Init containers of a worker: (list $ "prefill"). */}}
{{- define "tandem.workerInit" -}}
{{- $root := index . 0 }}
{{- $parts := list }}
{{- if include "tandem.downloads" $root }}
{{- $arguments := ternary (list $root "--only-tokenizer") (list $root) (eq (include "tandem.engine" $root) "sim") }}
{{- $parts = append $parts (include "tandem.fetchModel" $arguments) }}
{{- end }}
{{- range $number, $adapter := $root.Values.loraAdapters }}
{{- if $adapter.uri }}{{ $parts = append $parts (include "tandem.fetchLora" (list $root $number $adapter)) }}{{ end }}
{{- end }}
{{- if and $root.Values.code.image (eq $root.Values.code.imageMode "copy") }}
{{- $parts = append $parts (include "tandem.copyCode" $root) }}
{{- end }}
{{- with (index $root.Values (index . 1)).extraInitContainers }}
{{- $parts = append $parts (toYaml .) }}
{{- end }}
{{- join "\n" $parts }}
{{- end }}

{{- /* How new pods of a phase replace old ones: (list $ "prefill"). */}}
{{- define "tandem.rollout" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) }}
{{- $replicas := ternary $values.replicas $values.autoscaling.minReplicas (eq $values.autoscaling.type "none") }}
{{- $scarce := and (include "tandem.onGpu" $root) (gt (int $replicas) 1) }}
{{- $rollout := $values.rollout }}
{{- if eq $rollout "auto" }}{{ $rollout = ternary "replace" "surge" (not (empty $scarce)) }}{{ end -}}
{{ ternary "{maxSurge: 1, maxUnavailable: 0}" "{maxSurge: 0, maxUnavailable: 1}" (eq $rollout "surge") }}
{{- end }}

{{- /* The image of workers. */}}
{{- define "tandem.workerImage" -}}
{{- $image := ternary .Values.engine.image .Values.image (eq (include "tandem.engine" .) "sglang") }}
{{- include "tandem.image" (list . $image) }}
{{- end }}

{{- /* Whether workers hold accelerators; empty: no. */}}
{{- define "tandem.onGpu" -}}
{{- if and (eq (include "tandem.engine" .) "sglang") (eq .Values.engine.device "cuda") }}yes{{ end }}
{{- end }}

{{- /* kvTransfer.rdma for a component: (list $ "prefill"). No KV moves to or from an aggregated worker. */}}
{{- define "tandem.rdma" -}}
{{- ternary (dict "enabled" false) (index . 0).Values.kvTransfer.rdma (eq (index . 1) "worker") | toYaml }}
{{- end }}

{{- /* Whether a component's worker is a group of pods on several nodes: (list $ "prefill"); empty: no. */}}
{{- define "tandem.spread" -}}
{{- if gt (index (index . 0).Values (index . 1) | dig "workload" "nodes" 1 | int) 1 }}yes{{ end }}
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

{{- /* Workers that are groups of pods: (list $ "prefill"). Every pod of a group runs the same; which one leads, the
controller tells it. A subdomain for each group: the set's own Service would have the name of the phase's. */}}
{{- define "tandem.leaderWorkerSet" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  {{- include "tandem.workloadMetadata" . | nindent 2 }}
spec:
  {{- with include "tandem.replicas" . }}
  replicas: {{ . }}
  {{- end }}
  startupPolicy: LeaderCreated
  networkConfig: {subdomainPolicy: UniquePerReplica}
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration: {{ include "tandem.rollout" . }}
  leaderWorkerTemplate:
    size: {{ $values.workload.nodes }}
    restartPolicy: RecreateGroupOnPodRestart
    workerTemplate:
      {{- include "tandem.workerPod" . | nindent 6 }}
{{- end }}

{{- /* The pods of a phase: (list $ "prefill"). */}}
{{- define "tandem.workerPod" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $values := index $root.Values $component }}
{{- $rdma := include "tandem.rdma" . | fromYaml }}
{{- $isSglang := eq (include "tandem.engine" $root) "sglang" }}
{{- $pull := ternary $root.Values.engine.image.pullPolicy $root.Values.image.pullPolicy $isSglang -}}
metadata:
  {{- include "tandem.podMetadata" . | nindent 2 }}
  {{- if and $rdma.enabled $rdma.networks }}
    k8s.v1.cni.cncf.io/networks: {{ $rdma.networks | quote }}
  {{- end }}
spec:
  {{- include "tandem.podSpec" . | nindent 2 }}
  {{- if and $rdma.enabled $rdma.hostNetwork }}
  hostNetwork: true
  {{- if not $values.dnsPolicy }}
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- end }}
  {{- with $values.accelerator.claims }}
  resourceClaims:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "tandem.workerInit" . }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ $component }}
      image: {{ include "tandem.workerImage" $root }}
      imagePullPolicy: {{ $pull }}
      command: [tandem-{{ ternary "aggregated" $component (eq $component "worker") }}-worker]
      terminationMessagePolicy: FallbackToLogsOnError
      ports:
        {{- include "tandem.workerPorts" . | nindent 8 }}
      env:
        {{- include "tandem.workerEnv" . | nindent 8 }}
      {{- with $values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "tandem.probes" . | nindent 6 }}
      resources:
        {{- include "tandem.workerResources" . | nindent 8 }}
      securityContext:
        {{- include "tandem.workerSecurityContext" . | nindent 8 }}
      volumeMounts:
        {{- include "tandem.volumeMounts" . | nindent 8 }}
        - {name: shm, mountPath: /dev/shm}
        {{- if dig "hugepages" "size" "" $values }}
        - {name: hugepages, mountPath: /dev/hugepages}
        {{- end }}
        {{- with include "tandem.modelMount" $root }}{{ . | trim | nindent 8 }}{{ end }}
        {{- with include "tandem.codeMounts" $root }}{{ . | trim | nindent 8 }}{{ end }}
    {{- with $values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "tandem.volumes" . | nindent 4 }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $values.shm.sizeLimit }}}
    {{- if dig "hugepages" "size" "" $values }}
    - name: hugepages
      emptyDir: {medium: HugePages-{{ $values.hugepages.pageSize }}}
    {{- end }}
    {{- with include "tandem.modelVolume" $root }}{{ . | trim | nindent 4 }}{{ end }}
    {{- with include "tandem.codeVolumes" $root }}{{ . | trim | nindent 4 }}{{ end }}
{{- end }}

{{- define "tandem.workerPorts" -}}
{{- if eq (index . 1) "prefill" -}}
- {name: grpc, containerPort: 7100}
- {name: metrics, containerPort: 7101}
- {name: bootstrap, containerPort: 7110}
{{- else if eq (index . 1) "worker" -}}
- {name: grpc, containerPort: 7300}
- {name: metrics, containerPort: 7301}
{{- else -}}
- {name: grpc, containerPort: 7200}
- {name: metrics, containerPort: 7201}
{{- end }}
{{- if include "tandem.spread" . }}
- {name: nodes, containerPort: 7120}
{{- end }}
{{- end }}

{{- define "tandem.workerEnv" -}}
{{- $root := index . 0 }}
{{- $transfer := $root.Values.kvTransfer }}
{{- $tls := default (ternary "^tcp" "" $transfer.requireRdma) $transfer.ucx.tls -}}
- name: TANDEM_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: TANDEM_ADVERTISE_HOST
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- if include "tandem.spread" . }}
- {name: TANDEM_NODE_RANK, value: $(LWS_WORKER_INDEX)}
- {name: TANDEM_LEADER, value: "$(LWS_LEADER_ADDRESS):7120"}
{{- end }}
{{- with include "tandem.codePath" $root }}
- {name: PYTHONPATH, value: {{ . | quote }}}
{{- end }}
{{- with $tls }}
- {name: UCX_TLS, value: {{ . | quote }}}
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
cache, which decode pins in the host: on 80 GB no more than 16Gi. */}}
{{- define "tandem.workerRequests" -}}
{{- $root := index . 0 }}
{{- if include "tandem.onGpu" $root }}
{{- $ranks := div $root.Values.engine.tensorParallel (index $root.Values (index . 1) | dig "workload" "nodes" 1) -}}
{cpu: {{ add 3 $ranks }}, memory: {{ add 8 (mul 16 $ranks) }}Gi}
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
{{- $_ := set $devices $values.accelerator.resourceName (div $root.Values.engine.tensorParallel (dig "workload" "nodes" 1 $values)) }}
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

{{- /* Init containers of a worker: (list $ "prefill"). */}}
{{- define "tandem.workerInit" -}}
{{- $root := index . 0 }}
{{- $parts := list }}
{{- if include "tandem.downloads" $root }}
{{- $arguments := ternary (list $root "--only-tokenizer") (list $root) (eq (include "tandem.engine" $root) "sim") }}
{{- $parts = append $parts (include "tandem.fetchModel" $arguments) }}
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

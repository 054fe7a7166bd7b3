{{- /* tandem.yaml of each component: the chart's own settings over those of `config`. */}}

{{- /* What a pod carries in its own annotations, settings and code, so that each revision's pods find their own:
(list $ "router"). */}}
{{- define "tandem.carried" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $carried := dict "tandem/settings" (include (printf "tandem.settings.%s" $component) $root | printf "%s\n") }}
{{- if include "tandem.runsCode" . }}
{{- range $name, $text := $root.Values.code.files }}{{ $_ := set $carried (printf "tandem/code.%s" $name) $text }}{{ end }}
{{- end }}
{{- toJson $carried }}
{{- end }}

{{- define "tandem.settings.common" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) }}
{{- $settings := dict
  "drain_seconds" $values.drain.timeoutSeconds
  "log_format" $root.Values.logs.format
  "log_level" $root.Values.logs.level }}
{{- if $root.Values.tls.enabled }}
{{- $settings = merge $settings (dict
  "tls_cert" "/etc/tandem-tls/tls.crt"
  "tls_key" "/etc/tandem-tls/tls.key"
  "tls_ca" "/etc/tandem-tls/ca.crt"
  "tls_peer_name" (include "tandem.peerName" $root)) }}
{{- end }}
{{- with $root.Values.tracing.otlpEndpoint }}
{{- $settings = merge $settings (dict
  "otlp_endpoint" . "trace_sample_ratio" $root.Values.tracing.sampleRatio) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{- /* Not empty where there may be more than one router at once, beside a rollout. */}}
{{- define "tandem.severalRouters" -}}
{{- $router := .Values.router }}
{{- $most := ternary $router.replicas $router.autoscaling.maxReplicas (eq $router.autoscaling.type "none") }}
{{- if or (kindIs "invalid" $most) (gt (int $most) 1) }}yes{{ end }}
{{- end }}

{{- /* Where frontends find routers: of one its Service, which leads to the next one at once; of several each. */}}
{{- define "tandem.routers" -}}
{{- $service := include "tandem.component" (list . "router") }}
{{- $own := ternary (printf "dns://%s-each:7000" $service) (printf "%s:7000" $service) (include "tandem.severalRouters" . | not | not) }}
{{- join "," (prepend .Values.frontend.routers $own) }}
{{- end }}

{{- define "tandem.settings.frontend" -}}
{{- $settings := include "tandem.settings.common" (list . "frontend") | fromYaml | merge (dict
  "listen" (printf "%s:8000" .Values.global.listen)
  "metrics_listen" (printf "%s:8001" .Values.global.listen)
  "router" (include "tandem.routers" .)
  "model_path" (include "tandem.modelPath" .)
  "served_model_name" (include "tandem.modelName" .)) }}
{{- if include "tandem.httpsSecret" . }}
{{- $settings = merge $settings (dict
  "https_cert" "/etc/tandem-https/tls.crt"
  "https_key" "/etc/tandem-https/tls.key") }}
{{- end }}
{{- with .Values.frontend.apiKeysFile }}
{{- if or .existingSecret .path }}
{{- $frontend := $.Values.frontend }}
{{- $pods := ternary $frontend.replicas $frontend.autoscaling.minReplicas (eq $frontend.autoscaling.type "none") }}
{{- $settings = merge $settings (dict "api_keys_file" (default (printf "/etc/tandem-keys/%s" .key) .path)
  "key_limit_shares" (max 1 (int $pods))) }}
{{- end }}
{{- end }}
{{- $models := dict }}
{{- range .Values.frontend.models }}
{{- $_ := set $models .name (include "tandem.furtherPath" .) }}
{{- end }}
{{- if $models }}{{ $settings = merge $settings (dict "models" $models) }}{{ end }}
{{- with .Values.frontend.modelNames }}
{{- if .existingConfigMap }}
{{- $settings = merge $settings (dict "model_names_file" (printf "/etc/tandem-names/%s" .key)) }}
{{- end }}
{{- end }}
{{- $waits := dict }}
{{- if not (include "tandem.severalRouters" .) }}{{ $_ := set $waits "router_wait_seconds" (int .Values.router.startupSeconds) }}{{ end }}
{{- merge $settings .Values.frontend.config $waits | toYaml }}
{{- end }}

{{- define "tandem.settings.router" -}}
{{- $prefill := include "tandem.component" (list . "prefill") }}
{{- $decode := include "tandem.component" (list . "decode") }}
{{- $worker := include "tandem.component" (list . "worker") }}
{{- $settings := include "tandem.settings.common" (list . "router") | fromYaml | merge (dict
  "listen" (printf "%s:7000" .Values.global.listen)
  "metrics_listen" (printf "%s:7001" .Values.global.listen)
  "discovery" .Values.router.discovery) }}
{{- if eq .Values.router.discovery "kubernetes" }}
{{- $settings = merge $settings (dict "prefill_service" $prefill "decode_service" $decode) }}
{{- if .Values.worker.enabled }}{{ $_ := set $settings "worker_service" $worker }}{{ end }}
{{- else }}
{{- $settings = merge $settings (dict
  "prefill" (list (printf "%s:7100" $prefill)) "decode" (list (printf "%s:7200" $decode))) }}
{{- range include "tandem.furtherTokenProcesses" . | fromYamlArray }}
{{- $_ := set $settings "decode" (append $settings.decode (printf "%s:%d" $decode (add 7200 .))) }}
{{- end }}
{{- if .Values.worker.enabled }}{{ $_ := set $settings "workers" (list (printf "%s:7300" $worker)) }}{{ end }}
{{- end }}
{{- if .Values.router.decodeRouters }}
{{- $settings = merge $settings (dict
  "decode_routers" .Values.router.decodeRouters "router_service" (include "tandem.component" (list . "router"))) }}
{{- end }}
{{- if include "tandem.voucherVolume" . }}
{{- $settings = merge $settings (dict "voucher_key_file" "/etc/tandem-voucher/voucher.key") }}
{{- end }}
{{- $toNothing := not (and .Values.prefill.autoscaling.minReplicas .Values.decode.autoscaling.minReplicas) }}
{{- if or $toNothing (and .Values.worker.enabled (not .Values.worker.autoscaling.minReplicas)) }}
{{- /* Requests wait for the first worker. */}}
{{- $settings = merge $settings .Values.router.config (dict "expected_models" (list (include "tandem.modelName" .))) }}
{{- end }}
{{- /* What the frontends let clients ask for must pass the router. */}}
{{- $permissions := pick .Values.frontend.config "client_logits_processors" "allow_reports" "allow_external_scores" "allow_kv_hints" }}
{{- merge $settings .Values.router.config $permissions (include "tandem.pairWait" . | fromYaml) | toYaml }}
{{- end }}

{{- /* How long requests wait where the only worker of a phase goes: until the next one has started. Nobody waits
so long where there are several: that all of them are gone is news. */}}
{{- define "tandem.pairWait" -}}
{{- $alone := "" }}
{{- range $component := include "tandem.workers" . | fromJsonArray }}
{{- $values := index $.Values $component }}
{{- $least := ternary $values.replicas $values.autoscaling.minReplicas (eq $values.autoscaling.type "none") }}
{{- $none := and $.Values.worker.enabled (eq $values.autoscaling.type "none") (eq (toString $least) "0") }}
{{- if and (not $none) (or (kindIs "invalid" $least) (le (int $least) 1)) }}{{ $alone = "yes" }}{{ end }}
{{- end }}
{{- if $alone }}
{{- $wait := ternary 60 (include "tandem.longestStart" . | int) (eq (include "tandem.engine" .) "sim") -}}
pair_wait_seconds: {{ $wait }}
pair_memory_seconds: {{ max 600 $wait }}
{{- else -}}
{}
{{- end }}
{{- end }}

{{- define "tandem.settings.prefill" -}}
{{- include "tandem.workerSettings" (list . "prefill" "7100" "7101") }}
{{- end }}

{{- define "tandem.settings.decode" -}}
{{- include "tandem.workerSettings" (list . "decode" "7200" "7201") }}
{{- end }}

{{- define "tandem.settings.worker" -}}
{{- include "tandem.workerSettings" (list . "worker" "7300" "7301") }}
{{- end }}

{{- define "tandem.workerSettings" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $settings := include "tandem.settings.common" . | fromYaml | merge (dict
  "listen" (printf "%s:%s" $root.Values.global.listen (index . 2))
  "metrics_listen" (printf "%s:%s" $root.Values.global.listen (index . 3))
  "engine" (include "tandem.engine" $root)
  "engine_options" (include "tandem.engineOptions" . | fromYaml)
  "model_path" (include "tandem.modelPath" $root)
  "served_model_name" (include "tandem.modelName" $root)
  "deployment_revision" (include "tandem.revision" $root)
  "ready_when_paired" true) }}
{{- if include "tandem.spread" . }}{{ $_ := set $settings "nodes" (index $root.Values $component).workload.nodes }}{{ end }}
{{- $processes := index $root.Values $component | dig "tokenProcesses" 1 | int }}
{{- if gt $processes 1 }}{{ $_ := set $settings "token_processes" $processes }}{{ end }}
{{- range $name, $value := include "tandem.shared" $root | fromYaml }}
{{- if and $value (or (ne $name "classifiers") (ne $component "prefill")) }}{{ $_ := set $settings $name $value }}{{ end }}
{{- end }}
{{- merge $settings (index $root.Values $component).config | toYaml }}
{{- end }}

{{- /* Settings of workers that come from values of the whole deployment. */}}
{{- define "tandem.shared" -}}
hooks: {{ toYaml .Values.hooks | nindent 2 }}
classifiers: {{ toYaml .Values.classifiers | nindent 2 }}
logits_processors: {{ toYaml .Values.logitsProcessors | nindent 2 }}
{{- with .Values.loraAdapters }}
lora_adapters:
  {{- range . }}
  {{ .name | quote }}: {{ include "tandem.loraPath" . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* engine_options of a phase: (list $ "prefill"). The ports of its hand-over are fixed, so that policies can name
them. */}}
{{- define "tandem.engineOptions" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $options := dict }}
{{- $defaults := dict }}
{{- $name := include "tandem.engine" $root }}
{{- if ne $name "sim" }}
{{- $_ := set $defaults "load_seconds" (int (index $root.Values $component).startupSeconds) }}
{{- end }}
{{- if eq $name "sglang" }}
{{- $engine := $root.Values.engine }}
{{- $options = dict "device" $engine.device "tensor_parallel" $engine.tensorParallel }}
{{- range $name, $value := dict "data_parallel" $engine.dataParallel "pipeline_parallel" $engine.pipelineParallel }}
{{- if gt (int $value) 1 }}{{ $_ := set $options $name $value }}{{ end }}
{{- end }}
{{- range $name, $value := dict "decode_tensor_parallel" $engine.decodeTensorParallel "decode_data_parallel" $engine.decodeDataParallel "decode_pipeline_parallel" $engine.decodePipelineParallel }}
{{- if and $value (ne $component "worker") }}{{ $_ := set $options $name $value }}{{ end }}
{{- end }}
{{- if and (ne $root.Values.kvTransfer.backend "nixl") (ne $component "worker") }}
{{- $_ := set $options "transfer_backend" $root.Values.kvTransfer.backend }}
{{- end }}
{{- if eq $component "prefill" }}{{ $_ := set $options "bootstrap_port" 7110 }}{{ end }}
{{- else }}
{{- if eq $name "vllm" }}{{ $_ := set $options "tensor_parallel" $root.Values.engine.tensorParallel }}{{ end }}
{{- if eq $component "prefill" }}
{{- $_ := set $options "kv_port" 7110 }}
{{- if eq $name "vllm" }}{{ $_ := set $options "side_channel_port" 7111 }}{{ end }}
{{- end }}
{{- end }}
{{- mergeOverwrite $defaults $root.Values.engine.options (index $root.Values $component).engineOptions $options | toYaml }}
{{- end }}

{{- /* Names what prefill and decode must have in common. Workers of two revisions never make a pair, so a rollout
never hands KV from an old worker to a new one. */}}
{{- define "tandem.revision" -}}
{{- $model := pick .Values.model "uri" "name" "revision" "ociPath" }}
{{- $engine := omit .Values.engine "image" "vllmImage" "type" }}
{{- $shared := list (include "tandem.workerImage" .) (include "tandem.engine" .) $model $engine .Values.kvTransfer
  (include "tandem.shared" .) .Values.loraAdapters .Values.code .Values.prefill.engineOptions .Values.decode.engineOptions }}
{{- toJson $shared | sha256sum | trunc 12 }}
{{- end }}

{{- /* What computes: sim, sglang or vllm. */}}
{{- define "tandem.engine" -}}
{{- if ne .Values.engine.type "auto" }}{{ .Values.engine.type }}
{{- else }}{{ ternary "sglang" "sim" (ne .Values.model.uri "") }}
{{- end }}
{{- end }}

{{- /* What requests call the model. */}}
{{- define "tandem.modelName" -}}
{{- if .Values.model.name }}{{ .Values.model.name }}
{{- else if .Values.model.uri }}{{ regexReplaceAll "[:@].*$" (regexReplaceAll "^[a-z0-9]+:/+" .Values.model.uri "" | trimSuffix "/" | base) "" }}
{{- else }}tandem-tiny
{{- end }}
{{- end }}

{{- /* hf, s3, gs, pvc, oci, file, image, or baked. */}}
{{- define "tandem.modelScheme" -}}
{{- if .Values.model.uri }}{{ regexFind "^[a-z0-9]+" .Values.model.uri }}{{ else }}baked{{ end }}
{{- end }}

{{- /* Whether the model is downloaded; empty: no. */}}
{{- define "tandem.isRemote" -}}
{{- if has (include "tandem.modelScheme" .) (list "hf" "s3" "gs") }}yes{{ end }}
{{- end }}

{{- /* Whether the pods that need the model download it themselves; empty: no. */}}
{{- define "tandem.downloads" -}}
{{- if and (include "tandem.isRemote" .) (not .Values.model.cache.readOnly) }}yes{{ end }}
{{- end }}

{{- /* The model's folder in a container. */}}
{{- define "tandem.modelPath" -}}
{{- $scheme := include "tandem.modelScheme" . }}
{{- $rest := regexReplaceAll "^[a-z0-9]+://" .Values.model.uri "" }}
{{- if eq $scheme "baked" }}/opt/tandem/model/tandem-tiny
{{- else if eq $scheme "hf" }}/models/{{ replace "/" "--" $rest }}/{{ replace "/" "--" .Values.model.revision }}
{{- else if include "tandem.isRemote" . }}/models/{{ trimSuffix "/" $rest | replace "/" "--" }}
{{- else if eq $scheme "pvc" }}{{ printf "/model/%s" (regexReplaceAll "^[^/]+/?" $rest "") | trimSuffix "/" }}
{{- else if eq $scheme "oci" }}{{ printf "/model/%s" (trimPrefix "/" .Values.model.ociPath) | trimSuffix "/" }}
{{- else if eq $scheme "file" }}/model
{{- else if eq $scheme "image" }}{{ $rest }}
{{- end }}
{{- end }}

{{- /* The volume that holds the model; nothing where the image does. */}}
{{- define "tandem.modelVolume" -}}
{{- $scheme := include "tandem.modelScheme" . }}
{{- $rest := regexReplaceAll "^[a-z]+://" .Values.model.uri "" }}
{{- $cache := .Values.model.cache }}
{{- if eq $scheme "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ regexFind "^[^/]+" $rest }}, readOnly: true}
{{- else if eq $scheme "oci" }}
- name: model
  image: {reference: {{ $rest | quote }}, pullPolicy: IfNotPresent}
{{- else if eq $scheme "file" }}
- name: model
  hostPath: {path: {{ $rest | quote }}, type: Directory}
{{- else if not (include "tandem.isRemote" .) }}
{{- else if eq $cache.type "pvc" }}
- name: model
  persistentVolumeClaim:
    claimName: {{ default (include "tandem.component" (list . "model")) $cache.existingClaim }}
    readOnly: {{ $cache.readOnly }}
{{- else if eq $cache.type "hostPath" }}
- name: model
  hostPath: {path: {{ $cache.hostPath | quote }}, type: DirectoryOrCreate}
{{- else }}
- name: model
  emptyDir: {sizeLimit: {{ $cache.size }}}
{{- end }}
{{- if include "tandem.downloads" . }}
{{- with .Values.model.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tandem.modelMount" -}}
{{- $scheme := include "tandem.modelScheme" . }}
{{- if include "tandem.isRemote" . }}
- {name: model, mountPath: /models, readOnly: true}
{{- else if has $scheme (list "pvc" "oci" "file") }}
- {name: model, mountPath: /model, readOnly: true}
{{- end }}
{{- end }}

{{- /* The container that downloads the model, or does nothing where it is there: (list $), or (list $ "--only-tokenizer"). */}}
{{- define "tandem.fetchModel" -}}
{{- $root := index . 0 }}
{{- $model := $root.Values.model -}}
- name: fetch-model
  image: {{ include "tandem.image" (list $root $root.Values.image) }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command: [tandem, fetch-model, {{ $model.uri | quote }}]
  args:
    {{- if eq (include "tandem.modelScheme" $root) "hf" }}
    - --revision={{ $model.revision }}
    {{- end }}
    - --to={{ include "tandem.modelPath" $root }}
    {{- range rest . }}
    - {{ . }}
    {{- end }}
  {{- include "tandem.fetchRights" (list $root (include "tandem.modelScheme" $root) "model" "/models") | nindent 2 }}
{{- end }}

{{- /* What a container that downloads is given, and where it writes: (list $ "s3" "model" "/models"). */}}
{{- define "tandem.fetchRights" -}}
{{- $root := index . 0 }}
{{- $isS3 := eq (index . 1) "s3" }}
{{- $model := $root.Values.model -}}
terminationMessagePolicy: FallbackToLogsOnError
env:
  - {name: HOME, value: /tmp}
  {{- with $model.hubEndpoint }}
  - {name: {{ ternary "AWS_ENDPOINT_URL" "HF_ENDPOINT" $isS3 }}, value: {{ . | quote }}}
  {{- if and $isS3 (hasPrefix "http://" .) }}
  - {name: AWS_ALLOW_HTTP, value: "true"}
  {{- end }}
  {{- end }}
  {{- with $model.auth.existingSecret }}
  - name: HF_TOKEN
    valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $model.auth.key }}}}
  {{- end }}
  {{- with $model.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $model.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- toYaml $model.preload.resources | nindent 2 }}
securityContext:
  {{- include "tandem.securityContext" $model.preload.securityContext | nindent 2 }}
volumeMounts:
  - {name: {{ index . 2 }}, mountPath: {{ index . 3 }}}
  - {name: tmp, mountPath: /tmp}
  {{- with $model.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* The folder of a LoRA adapter in a worker. */}}
{{- define "tandem.loraPath" -}}
{{- if .path }}{{ .path }}{{ else }}/lora-adapters/{{ .name }}{{ end }}
{{- end }}

{{- /* Whether LoRA adapters are downloaded; empty: no. */}}
{{- define "tandem.fetchesLora" -}}
{{- range .Values.loraAdapters }}{{ if .uri }}yes{{ end }}{{ end }}
{{- end }}

{{- /* The container that downloads one: (list $ 0 $adapter). */}}
{{- define "tandem.fetchLora" -}}
{{- $root := index . 0 }}
{{- $adapter := index . 2 -}}
- name: fetch-lora-{{ index . 1 }}
  image: {{ include "tandem.image" (list $root $root.Values.image) }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command: [tandem, fetch-model, {{ $adapter.uri | quote }}]
  args:
    {{- if hasPrefix "hf://" $adapter.uri }}
    - --revision={{ default "main" $adapter.revision }}
    {{- end }}
    - --to={{ include "tandem.loraPath" $adapter }}
    - --lora
  {{- include "tandem.fetchRights" (list $root (regexFind "^[a-z0-9]+" $adapter.uri) "lora-adapters" "/lora-adapters") | nindent 2 }}
{{- end }}

{{- /* The folder of a model of other releases, of the frontend's `models`. */}}
{{- define "tandem.furtherPath" -}}
{{- if .path }}{{ .path }}{{ else }}/further-models/{{ replace "/" "--" .name }}{{ end }}
{{- end }}

{{- /* Whether tokenizers of such models are downloaded; empty: no. */}}
{{- define "tandem.fetchesFurther" -}}
{{- range .Values.frontend.models }}{{ if .uri }}yes{{ end }}{{ end }}
{{- end }}

{{- /* The container that downloads the tokenizer of one: (list $ 0 $model). */}}
{{- define "tandem.fetchFurther" -}}
{{- $root := index . 0 }}
{{- $model := index . 2 -}}
- name: fetch-model-{{ index . 1 }}
  image: {{ include "tandem.image" (list $root $root.Values.image) }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command: [tandem, fetch-model, {{ $model.uri | quote }}]
  args:
    {{- if hasPrefix "hf://" $model.uri }}
    - --revision={{ default "main" $model.revision }}
    {{- end }}
    - --to={{ include "tandem.furtherPath" $model }}
    - --only-tokenizer
  {{- include "tandem.fetchRights" (list $root (regexFind "^[a-z0-9]+" $model.uri) "further-models" "/further-models") | nindent 2 }}
{{- end }}

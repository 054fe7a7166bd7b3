{{- /* What computes: sim or sglang. */}}
{{- define "tandem.engine" -}}
{{- if ne .Values.engine.type "auto" }}{{ .Values.engine.type }}
{{- else }}{{ ternary "sglang" "sim" (ne .Values.model.uri "") }}
{{- end }}
{{- end }}

{{- /* What requests call the model. */}}
{{- define "tandem.modelName" -}}
{{- if .Values.model.name }}{{ .Values.model.name }}
{{- else if .Values.model.uri }}{{ regexReplaceAll "[:@].*$" (regexReplaceAll "^[a-z]+:/+" .Values.model.uri "" | trimSuffix "/" | base) "" }}
{{- else }}tandem-tiny
{{- end }}
{{- end }}

{{- /* hf, pvc, oci, file, image, or baked. */}}
{{- define "tandem.modelScheme" -}}
{{- if .Values.model.uri }}{{ regexFind "^[a-z]+" .Values.model.uri }}{{ else }}baked{{ end }}
{{- end }}

{{- /* The model's folder in a container. */}}
{{- define "tandem.modelPath" -}}
{{- $scheme := include "tandem.modelScheme" . }}
{{- $rest := regexReplaceAll "^[a-z]+://" .Values.model.uri "" }}
{{- if eq $scheme "baked" }}/opt/tandem/model/tandem-tiny
{{- else if eq $scheme "hf" }}/models/{{ replace "/" "--" $rest }}/{{ replace "/" "--" .Values.model.revision }}
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
{{- else if ne $scheme "hf" }}
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
{{- end }}

{{- define "tandem.modelMount" -}}
{{- $scheme := include "tandem.modelScheme" . }}
{{- if eq $scheme "hf" }}
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
    - --revision={{ $model.revision }}
    - --to={{ include "tandem.modelPath" $root }}
    {{- range rest . }}
    - {{ . }}
    {{- end }}
  env:
    - {name: HOME, value: /tmp}
    {{- with $model.hubEndpoint }}
    - {name: HF_ENDPOINT, value: {{ . | quote }}}
    {{- end }}
    {{- with $model.auth.existingSecret }}
    - name: HF_TOKEN
      valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $model.auth.key }}}}
    {{- end }}
  resources:
    {{- toYaml $model.preload.resources | nindent 4 }}
  securityContext:
    {{- include "tandem.securityContext" (dict) | nindent 4 }}
  volumeMounts:
    - {name: model, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- end }}

{{- /* The pod that downloads the model before workers ask for it. */}}
{{- define "tandem.preloadPod" -}}
{{- $root := . -}}
metadata:
  labels:
    {{- include "tandem.selectorLabels" (list . "model") | nindent 4 }}
spec:
  restartPolicy: OnFailure
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext:
    {{- include "tandem.podSecurityContext" (dict) | nindent 4 }}
  {{- with .Values.global.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" }}
  {{- with get $root.Values.model.preload $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
    {{- include "tandem.fetchModel" (list .) | nindent 4 }}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: model
      persistentVolumeClaim:
        claimName: {{ default (include "tandem.component" (list . "model")) .Values.model.cache.existingClaim }}
{{- end }}

{{- /* The operator's own Python: each source in a folder of its own below /code, all of them on PYTHONPATH. */}}

{{- /* Whether a component runs that code: (list $ "frontend"). Empty: no. */}}
{{- define "tandem.runsCode" -}}
{{- $moderates := and (eq (index . 1) "frontend") (index . 0).Values.frontend.config.moderation_classifiers }}
{{- if or (has (index . 1) (list "prefill" "decode" "worker")) $moderates }}yes{{ end }}
{{- end }}

{{- define "tandem.codePath" -}}
{{- $paths := list }}
{{- if .Values.code.files }}{{ $paths = append $paths "/code/files" }}{{ end }}
{{- if .Values.code.existingConfigMap }}{{ $paths = append $paths "/code/config-map" }}{{ end }}
{{- if .Values.code.existingClaim }}{{ $paths = append $paths "/code/claim" }}{{ end }}
{{- if .Values.code.image }}
{{- $paths = append $paths (printf "/code/image%s" (ternary (printf "/%s" (trimPrefix "/" .Values.code.imagePath)) "" (eq .Values.code.imageMode "volume"))) }}
{{- end }}
{{- join ":" $paths }}
{{- end }}

{{- define "tandem.codeVolumes" -}}
{{- if .Values.code.files }}
- name: code-files
  downwardAPI:
    items:
      {{- range $name, $_ := .Values.code.files }}
      - {path: {{ $name }}, fieldRef: {fieldPath: "metadata.annotations['tandem/code.{{ $name }}']"}}
      {{- end }}
{{- end }}
{{- with .Values.code.existingConfigMap }}
- name: code-config-map
  configMap: {name: {{ . }}}
{{- end }}
{{- with .Values.code.existingClaim }}
- name: code-claim
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- if .Values.code.image }}
- name: code-image
  {{- if eq .Values.code.imageMode "volume" }}
  image: {reference: {{ .Values.code.image | quote }}, pullPolicy: IfNotPresent}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
{{- end }}

{{- define "tandem.codeMounts" -}}
{{- if .Values.code.files }}
- {name: code-files, mountPath: /code/files, readOnly: true}
{{- end }}
{{- if .Values.code.existingConfigMap }}
- {name: code-config-map, mountPath: /code/config-map, readOnly: true}
{{- end }}
{{- if .Values.code.existingClaim }}
- {name: code-claim, mountPath: /code/claim, readOnly: true}
{{- end }}
{{- if .Values.code.image }}
- {name: code-image, mountPath: /code/image, readOnly: true}
{{- end }}
{{- end }}

{{- define "tandem.copyCode" -}}
- name: copy-code
  image: {{ .Values.code.image }}
  imagePullPolicy: IfNotPresent
  command: [cp, -R, {{ printf "%s/." (trimSuffix "/" .Values.code.imagePath) | quote }}, /code/image]
  terminationMessagePolicy: FallbackToLogsOnError
  resources:
    {{- toYaml .Values.code.resources | nindent 4 }}
  securityContext:
    {{- include "tandem.securityContext" (dict) | nindent 4 }}
  volumeMounts:
    - {name: code-image, mountPath: /code/image}
{{- end }}

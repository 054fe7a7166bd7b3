{{- /* The Secret with the certificate of https; empty: plain http. */}}
{{- define "tandem.httpsSecret" -}}
{{- $https := .Values.frontend.https }}
{{- if $https.existingSecret }}{{ $https.existingSecret }}
{{- else if $https.certManager.enabled }}{{ include "tandem.component" (list . "https") }}
{{- end }}
{{- end }}

{{- /* Init containers of the frontend, which reads the tokenizer and no weights. */}}
{{- define "tandem.frontendInit" -}}
{{- $parts := list }}
{{- if include "tandem.downloads" . }}
{{- $parts = append $parts (include "tandem.fetchModel" (list . "--only-tokenizer")) }}
{{- end }}
{{- range $number, $model := .Values.frontend.models }}
{{- if $model.uri }}
{{- $parts = append $parts (include "tandem.fetchFurther" (list $ $number $model)) }}
{{- end }}
{{- end }}
{{- if and (include "tandem.runsCode" (list . "frontend")) .Values.code.image (eq .Values.code.imageMode "copy") }}
{{- $parts = append $parts (include "tandem.copyCode" .) }}
{{- end }}
{{- with .Values.frontend.extraInitContainers }}
{{- $parts = append $parts (toYaml .) }}
{{- end }}
{{- join "\n" $parts }}
{{- end }}

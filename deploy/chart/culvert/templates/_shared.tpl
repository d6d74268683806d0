{{/* The labels of an object. Arguments: .root, and .name, the name of the program that it belongs to. */}}
{{- define "culvert.labels" -}}
app.kubernetes.io/name: {{ .name }}
{{ include "culvert.commonLabels" .root }}
{{- end }}

{{/* The labels of an object of no single program. */}}
{{- define "culvert.commonLabels" -}}
app.kubernetes.io/part-of: culvert
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The labels of a pod, without versions. Arguments: .root, .name, and .program, the values of the program. */}}
{{- define "culvert.podLabels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: culvert
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with .program.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The flags about logs. */}}
{{- define "culvert.logFlags" -}}
{{- with .Values.log.level }}
- --log={{ . }}
{{- end }}
{{- if ne .Values.log.format "text" }}
- --log-format={{ .Values.log.format }}
{{- end }}
{{- end }}

{{/* The image of a program. Arguments: .root, and .image, the value `image` of the program. */}}
{{- define "culvert.image" -}}
{{- with .root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.name -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* What every pod has of the image's values. */}}
{{- define "culvert.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* NODE_IP, for flags that need the address of the node. */}}
{{- define "culvert.nodeIP" -}}
- name: NODE_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- end }}

{{/*
Whether a kubelet may write this label of its own Node: "true", or nothing. The argument is the label. These are the rules
of the admission plugin NodeRestriction, the same since Kubernetes 1.20: a label is the kubelet's unless its prefix is
reserved for Kubernetes, and of those some are the kubelet's too.
*/}}
{{- define "culvert.kubeletMayWrite" -}}
{{- $reserved := regexMatch "^([a-z0-9.-]+[.])?(kubernetes|k8s)[.]io/" . -}}
{{- $kubelets := regexMatch "^([a-z0-9.-]+[.])?(node|kubelet)[.]kubernetes[.]io/" . -}}
{{- $named := list "kubernetes.io/hostname" "kubernetes.io/os" "kubernetes.io/arch" -}}
{{- $named = concat $named (list "beta.kubernetes.io/os" "beta.kubernetes.io/arch" "beta.kubernetes.io/instance-type") -}}
{{- $named = concat $named (list "topology.kubernetes.io/zone" "topology.kubernetes.io/region") -}}
{{- $named = concat $named (list "failure-domain.beta.kubernetes.io/zone" "failure-domain.beta.kubernetes.io/region") -}}
{{- if or (not $reserved) $kubelets (has . $named) }}true{{ end -}}
{{- end }}

{{/* The affinity of proxies: nodes with a label that no kubelet may write, and never an edge node. */}}
{{- define "culvert.cloudNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    {{- range .Values.cloudNodes.labels }}
    - matchExpressions:
      - {key: {{ quote . }}, operator: Exists}
      - {key: {{ quote $.Values.edgeNodes.label }}, operator: DoesNotExist}
    {{- end }}
{{- end }}

{{/* The security context of the proxy's program. deploy/cloud/proxy.yaml says why each field is there. */}}
{{- define "culvert.proxySecurity" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- if .Values.steering.kernelBefore519 }}
  add: [BPF]
  {{- end }}
seLinuxOptions: {type: spc_t}
seccompProfile:
  type: {{ ternary "RuntimeDefault" "Unconfined" .Values.steering.kernelBefore519 }}
{{- end }}
